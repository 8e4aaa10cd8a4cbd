"""The line of a simulated gateway: what is next, and that short prompts pass long ones."""

import random
from functools import partial

import pytest

from services.autoscaler.view import Arrival
from services.simulator.gateway import Gateway
from services.simulator.line import Line
from services.simulator.mixed_worker import MixedWorker
from services.simulator.prefill_worker import PrefillWorker
from services.simulator.request import Request
from services.simulator.timeline import Timeline
from services.simulator.unstarted import Unstarted
from services.simulator.worker_kind import WorkerKind
from shared.message_parts.step_costs import StepCosts
from shared.queue.backlog import Waiting
from shared.queue.room import Room

KIND = WorkerKind(StepCosts(chunk_token_s=1e-3), step_tokens=100, num_blocks=10_000)
"""a step takes 0.1 s, a prompt of more than 100 tokens is long"""


def request(at_s: float, num_prompt: int) -> Request:
    arrival = Arrival(at_s, num_prompt, 0, 1)
    return Request(arrival, KIND.alone_s(arrival), num_prompt)


def test_each_length_goes_in_its_order_and_the_first_of_both_is_first() -> None:
    line, (a, b, c, d) = Line(), (request(0, num) for num in (200, 10, 300, 20))
    assert line.join(a, is_long=True), "nothing is before it"
    assert line.join(b, is_long=False), "it may pass"
    assert not line.join(c, is_long=True)
    assert not line.join(d, is_long=False)
    assert line.waiting == Waiting(4, 530)
    assert line.first(short_only=False) == (a, True)
    assert line.first(short_only=True) == (b, False)
    line.leave(is_long=True)
    assert line.first(short_only=False) == (b, False)
    line.leave(is_long=False)
    assert line.first(short_only=False) == (c, True)
    line.leave(is_long=False)
    assert line.first(short_only=True) is None
    assert line.waiting == Waiting(1, 300)


def test_room_is_as_a_worker_counts_it() -> None:
    unstarted, prompts = Unstarted(200), [request(0, num) for num in (300, 40, 101)]
    for number, prompt in enumerate(prompts, start=1):
        unstarted.add(prompt)
        room = Room.whole(200).less((each.num_tokens, True) for each in prompts[:number])
        tokens = max(0, room.tokens)
        assert unstarted.room == room._replace(tokens=tokens, early_tokens=tokens)
    for prompt in prompts:
        unstarted.begin(prompt)
    assert unstarted.is_empty and unstarted.room == Room.whole(200)


@pytest.mark.parametrize("role", ["prefill", "mixed"])
def test_short_prompts_do_not_wait_for_the_long_ones_in_the_line(role: str) -> None:
    """One is computed in 2 s, one waits on the worker, and three in the line."""
    timeline, gateway = Timeline(), Gateway(random.Random(1))  # noqa: S311
    if role == "prefill":
        worker = PrefillWorker("w", KIND, timeline, lambda _: None, gateway.place_waiting)
        gateway.serve_with([worker], None)
    else:
        mixed = MixedWorker("w", KIND, timeline, lambda _: None, gateway.place_waiting)
        gateway.serve_with_mixed([mixed])
    long = [request(0.0, 2000) for _ in range(5)]
    short = [request(0.05 + 0.5 * number, 20) for number in range(16)]
    for item in (*long, *short):
        timeline.at(item.arrival.at_s, partial(gateway.arrive, item))
    timeline.run(100)
    ends_s = [item.computed_s or 0 for item in long]
    assert ends_s == sorted(ends_s) and ends_s[0] > 0
    assert max(item.wait_s or 9 for item in short) <= 0.2, "the step that runs"
    assert gateway.waiting == Waiting(0, 0)
