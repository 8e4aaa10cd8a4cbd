"""Workers of the simulated cell against lines computed by hand.

Guarded against: a wait that counts the prompt's own computing, a step that is longer than its
tokens, a long prompt that holds short ones up, decode steps that go on while nobody decodes, and
sequences that get blocks which others have.
"""

from functools import partial

import pytest

from services.autoscaler.view import Arrival
from services.simulator.decode_worker import DecodeWorker
from services.simulator.prefill_worker import PrefillWorker
from services.simulator.request import Request
from services.simulator.timeline import Timeline
from services.simulator.worker_kind import WorkerKind
from shared.message_parts.step_costs import StepCosts
from shared.queue.room import Room

FLAT = WorkerKind(StepCosts(chunk_token_s=1e-3), step_tokens=100)
"""a prompt of 100 tokens is one step of 0.1 s"""
DECODE = WorkerKind(StepCosts(step_s=0.01, row_s=0.002), num_blocks=10, block_size=16)


def request(at_s: float, num_prompt: int, kind: WorkerKind = FLAT, num_output: int = 10) -> Request:
    arrival = Arrival(at_s, num_prompt, 0, num_output)
    return Request(arrival, kind.alone_s(arrival), num_prompt)


def computed(*prompts: tuple[float, int], kind: WorkerKind = FLAT) -> list[Request]:
    """All of them by one worker."""
    timeline = Timeline()
    worker = PrefillWorker("p", kind, timeline, lambda _: None, lambda: None)
    requests = [request(at_s, num, kind) for at_s, num in prompts]
    for item in requests:
        timeline.at(item.arrival.at_s, partial(worker.take, item))
    timeline.run(1000)
    assert worker.is_empty
    assert worker.routed.idle
    assert (worker.routed.queued_tokens, worker.routed.room) == (0, Room.whole(200))
    return requests


def test_a_line_of_equal_prompts_waits_as_computed_by_hand() -> None:
    """One each 50 ms, 100 ms each: the k-th waits k x 50 ms."""
    waits_s = [item.wait_s for item in computed(*[(0.05 * k, 100) for k in range(6)])]
    assert waits_s == pytest.approx([0.05 * k for k in range(6)])


def test_a_step_is_filled_by_what_waits_and_lasts_as_long_as_its_tokens() -> None:
    first, second, third = computed((0, 100), (0.01, 30), (0.02, 60))
    assert first.computed_s == pytest.approx(0.1)
    assert second.computed_s == third.computed_s == pytest.approx(0.19)


def test_a_long_prompt_lets_short_ones_go_first() -> None:
    """It has three steps; what arrives during the first is computed before it goes on."""
    long, short = computed((0, 300), (0.05, 80))
    assert short.computed_s == pytest.approx(0.2)
    assert long.computed_s == pytest.approx(0.38)
    assert long.wait_s == pytest.approx(0.08)


def test_a_long_prompt_does_not_wait_forever() -> None:
    """When four times its tokens have arrived after it, its turn comes."""
    long, *short = computed((0, 300), *[(0.01 + 0.09 * k, 100) for k in range(40)])
    after = [item for item in short if (item.computed_s or 0) > (long.computed_s or 0)]
    assert len(after) > 25


def test_a_chunk_attends_to_what_was_computed_before_it() -> None:
    kind = WorkerKind(StepCosts(step_s=0.01, chunk_pair_s=1e-5), step_tokens=100)
    (found,) = computed((0, 200), kind=kind)
    assert found.computed_s == pytest.approx(2 * 0.01 + 1e-5 * 200 * 201 / 2)
    assert found.wait_s == pytest.approx(0)


def decoded(*arrivals: tuple[float, int, int]) -> list[Request]:
    """(second, tokens of the prompt, of the answer) by one worker."""
    timeline = Timeline()
    ended: list[Request] = []
    worker = DecodeWorker("d", DECODE, timeline, ended.append)
    requests = []
    for at_s, num_prompt, num_output in arrivals:
        item = request(at_s, num_prompt, DECODE, num_output)
        item.computed_s = at_s
        requests.append(item)
        timeline.at(at_s, partial(worker.take, item))
    timeline.run(1000)
    assert len(ended) == len(requests)
    assert worker.is_empty
    assert (worker.routed.spare_blocks, worker.routed.num_sequences) == (10, 0)
    return requests


def test_a_sequence_alone_takes_a_step_for_each_token() -> None:
    (found,) = decoded((1, 16, 10))
    assert found.ended_s == pytest.approx(1 + 10 * 0.012)


def test_sequences_slow_each_other_down_while_both_run() -> None:
    """5 steps of 12 ms alone, 10 of 14 ms together, 5 alone."""
    first, second = decoded((0, 16, 15), (0.06, 16, 15))
    assert first.ended_s == pytest.approx(0.06 + 10 * 0.014)
    assert second.ended_s == pytest.approx(0.06 + 10 * 0.014 + 5 * 0.012)


def test_one_without_blocks_waits_for_those_of_another() -> None:
    first, second = decoded((0, 150, 10), (0, 150, 10))
    assert second.joined_s == pytest.approx(first.ended_s)


def test_contexts_make_steps_longer_as_they_grow() -> None:
    kind = WorkerKind(StepCosts(step_s=0.01, context_token_s=1e-4), num_blocks=100)
    timeline = Timeline()
    ended: list[Request] = []
    worker = DecodeWorker("d", kind, timeline, ended.append)
    worker.take(request(0, 100, kind, 50))
    timeline.run(100)
    assert ended[0].ended_s == pytest.approx(50 * (0.01 + 1e-4 * (100 + 25)))
