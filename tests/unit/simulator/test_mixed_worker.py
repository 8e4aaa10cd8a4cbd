"""A worker that does both, against steps computed by hand and against the engine's own scheduler.

Guarded against: tokens that do not wait for a chunk in their step, a prompt that does not wait for
what decodes, and blocks that two have.
"""

import random
from functools import partial

import pytest

from services.autoscaler.view import Arrival, Promise
from services.simulator.batching.continuous_batching import ContinuousBatching, scheduler_of
from services.simulator.batching.request import Request as BatchedRequest
from services.simulator.mixed_worker import MixedWorker
from services.simulator.request import Request
from services.simulator.timeline import Timeline
from services.simulator.worker_kind import WorkerKind
from shared.message_parts.step_costs import StepCosts
from tests.support.cell_views import COSTS

FLAT = WorkerKind(
    StepCosts(step_s=0.01, row_s=0.002, chunk_token_s=1e-3), step_tokens=100, num_blocks=20
)
"""a step takes 10 ms, 2 ms more for each sequence, and 1 ms more for each token of a prompt"""


def served(*arrivals: tuple[float, int, int], kind: WorkerKind = FLAT) -> list[Request]:
    """(second, tokens of the prompt, of the answer) by one worker."""
    timeline, ended = Timeline(), list[Request]()
    worker = MixedWorker("w", kind, timeline, ended.append, lambda: None)
    requests = []
    for at_s, num_prompt, num_output in arrivals:
        arrival = Arrival(at_s, num_prompt, 0, num_output)
        requests.append(Request(arrival, kind.alone_s(arrival), num_prompt))
        timeline.at(at_s, partial(worker.take, requests[-1]))
    timeline.run(10_000)
    assert len(ended) == len(requests)
    assert worker.is_empty and worker.routed.idle and worker.used == 0
    assert (worker.routed.queued_tokens, worker.routed.num_sequences) == (0, 0)
    return requests


def test_a_request_alone_takes_its_chunks_and_a_step_for_each_further_token() -> None:
    (found,) = served((1, 150, 11))
    assert found.computed_s == pytest.approx(1 + 2 * 0.01 + 0.15)
    assert found.wait_s == pytest.approx(0)
    assert found.ended_s == pytest.approx((found.computed_s or 0) + 10 * 0.012)
    assert found.is_in_time(Promise(gap_s=0.0121), decodes=True)
    assert not found.is_in_time(Promise(gap_s=0.0119), decodes=True)


def test_an_answer_of_one_token_ends_with_its_prompt() -> None:
    (found,) = served((0, 50, 1))
    assert found.ended_s == found.computed_s == pytest.approx(0.06)


def test_while_a_prompt_is_computed_a_gap_is_as_long_as_a_step_with_a_chunk() -> None:
    """The second comes in the third step of the first, which then has 7 of 10 to go: one of them
    with 80 tokens, and 6 together with the second."""
    first, second = served((0, 50, 11), (0.06 + 2.5 * 0.012, 80, 20))
    begins_s = 0.06 + 3 * 0.012
    assert second.computed_s == pytest.approx(begins_s + 0.012 + 0.08)
    assert second.wait_s == pytest.approx(0.5 * 0.012 + 0.002)
    assert first.ended_s == pytest.approx(begins_s + 0.092 + 6 * 0.014)


def test_one_without_blocks_waits_and_so_does_all_behind_it() -> None:
    """20 blocks: 13, then 13, then 2."""
    first, second, third = served((0, 100, 100), (0.2, 100, 100), (0.3, 16, 16))
    assert first.ended_s and second.computed_s and third.computed_s
    assert second.computed_s == pytest.approx(first.ended_s + 0.01 + 0.1)
    assert third.computed_s > second.computed_s


@pytest.mark.parametrize("num_blocks", [4000, 400], ids=["roomy", "short of blocks"])
def test_requests_end_when_they_do_by_the_scheduler_of_the_engine(num_blocks: int) -> None:
    """But for chunks that end on block boundaries there."""
    dice, at_s, arrivals = random.Random(7), 0.0, list[tuple[float, int, int]]()  # noqa: S311
    for _ in range(150):
        at_s += dice.expovariate(2.5)
        arrivals.append((at_s, dice.randrange(50, 2000), dice.randrange(1, 150)))
    kind = WorkerKind(COSTS, num_blocks=num_blocks)
    simulated = served(*arrivals, kind=kind)

    timeline = Timeline()
    scheduler = scheduler_of(200, kind.step_tokens, 3000, num_blocks, "queue")
    engine = ContinuousBatching(scheduler, COSTS, timeline)
    batched = []
    for number, (at_s, num_prompt, num_output) in enumerate(arrivals):
        batched.append(BatchedRequest(number, at_s, num_prompt, num_output))
        timeline.at(at_s, partial(engine.take, batched[-1]))
    timeline.run(10_000)
    for mine, theirs in zip(simulated, batched, strict=True):
        assert mine.computed_s == pytest.approx(theirs.tokens_s[0], abs=0.005)
        assert mine.ended_s == pytest.approx(theirs.tokens_s[-1], abs=0.005)
