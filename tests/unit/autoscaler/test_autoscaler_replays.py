"""A replay says what share of requests would have been in time with n workers.

Guarded against: a formula that drifts from what an engine does. The references below go token by
token, or look at every worker; they share no code with the replays.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.autoscaler.planning.decode_replay import DecodeReplay, DecodeSequence
from services.autoscaler.planning.need import Need, sentence, smallest_need
from services.autoscaler.planning.prefill_replay import PrefillReplay, computing_s
from services.autoscaler.planning.typical_worker import TypicalWorker
from services.autoscaler.view import Arrival, Promise
from shared.message_parts.step_costs import StepCosts
from tests.support.cell_views import COSTS, poisson, worker

PROMPTS = st.lists(st.tuples(st.floats(0, 100), st.floats(0, 5)), min_size=1, max_size=40).map(
    sorted
)
SEQUENCES = st.lists(
    st.tuples(st.floats(0, 20), st.integers(0, 3000), st.integers(1, 200), st.integers(1, 100)),
    min_size=1,
    max_size=30,
).map(sorted)


def test_a_prompt_costs_its_steps_its_tokens_and_all_pairs_of_its_chunks() -> None:
    costs = StepCosts(step_s=1.0, chunk_token_s=0.1, chunk_pair_s=0.01)
    arrival = Arrival(0.0, num_prompt_tokens=10, num_cached_tokens=3)
    pairs, steps, start = 0, 0, 3
    while start < 10:
        chunk = range(start, min(10, start + 4))
        pairs += sum(position + 1 for position in chunk)
        steps, start = steps + 1, start + 4
    typical = TypicalWorker(costs, 4, 4000, 16)
    assert computing_s([arrival], typical) == [pytest.approx(steps + 0.7 + 0.01 * pairs)]


@given(prompts=PROMPTS, num_workers=st.integers(1, 6), wait_s=st.floats(0, 3))
def test_prompts_are_served_first_come_first_served(
    prompts: list[tuple[float, float]], num_workers: int, wait_s: float
) -> None:
    free_s, in_time = [0.0] * num_workers, 0
    for at_s, takes_s in prompts:
        earliest = free_s.index(min(free_s))
        begins_s = max(at_s, free_s[earliest])
        free_s[earliest] = begins_s + takes_s
        in_time += begins_s - at_s <= wait_s
    share = PrefillReplay(prompts, wait_s).share(num_workers)
    assert share == pytest.approx(in_time / len(prompts))


@given(prompts=PROMPTS, num_workers=st.integers(1, 6), at_least=st.floats(0.5, 1))
def test_a_replay_that_stops_early_is_below_the_target_as_the_whole_one_is(
    prompts: list[tuple[float, float]], num_workers: int, at_least: float
) -> None:
    replay = PrefillReplay(prompts, 1.0)
    whole, stopped = replay.share(num_workers), replay.share(num_workers, at_least)
    assert stopped == whole or max(stopped, whole) < at_least


def _token_by_token(
    sequences: list[DecodeSequence], costs: StepCosts, num_blocks: int, promised: Promise
) -> float:
    """One worker whose every step is taken. A sequence joins at a step's beginning."""
    running: list[tuple[DecodeSequence, float, list[int]]] = []
    now_s, waiting, late, hopeless = 0.0, list(sequences), 0, 0
    while waiting or running:
        if not running:
            now_s = max(now_s, waiting[0][0])
        used = sum(item[0][3] for item in running)
        while waiting and waiting[0][0] <= now_s and used + waiting[0][3] <= num_blocks:
            running.append((waiting.pop(0), now_s, [0]))
            used += running[-1][0][3]
        context = sum(item[0][1] + item[2][0] for item in running)
        now_s += costs.step_s + costs.row_s * len(running) + costs.context_token_s * context
        for item in running:
            item[2][0] += 1
        for sequence, joined_s, _ in [item for item in running if item[2][0] == item[0][2]]:
            ready_s, num_prompt, num_output, _ = sequence
            alone_s = costs.step_s + costs.row_s
            alone_s += costs.context_token_s * (num_prompt + num_output / 2)
            is_late = joined_s - ready_s > promised.wait_s
            is_late |= now_s - joined_s > promised.gap_s * num_output
            hopeless += alone_s > promised.gap_s
            late += is_late and alone_s <= promised.gap_s
        running = [item for item in running if item[2][0] < item[0][2]]
    num_judged = len(sequences) - hopeless
    return 1 - late / num_judged if num_judged else 1.0


@pytest.mark.parametrize("num_blocks", [10_000, 600], ids=["roomy", "short of blocks"])
@pytest.mark.parametrize("gap_s", [0.006, 0.008, 0.01])
def test_answers_of_one_worker_are_as_late_as_token_by_token(num_blocks: int, gap_s: float) -> None:
    arrivals = poisson(4.0, 60.0, num_output=200, until_s=60.0)
    typical = TypicalWorker(COSTS, 2048, num_blocks, 16)
    promised = Promise(gap_s=gap_s)
    replay = DecodeReplay.of(arrivals, [0.0] * len(arrivals), typical, promised)
    expected = _token_by_token(list(replay.sequences), COSTS, num_blocks, promised)
    assert replay.share(1) == pytest.approx(expected, abs=0.03)


@given(sequences=SEQUENCES, num_workers=st.integers(1, 8))
def test_more_decode_workers_than_sequences_make_nobody_late(
    sequences: list[DecodeSequence], num_workers: int
) -> None:
    replay = DecodeReplay(sequences, COSTS, 100, Promise(gap_s=0.006))
    assert 0 <= replay.share(num_workers) <= 1
    assert replay.share(10_000) == 1


def test_an_answer_that_no_number_of_workers_helps_asks_for_none() -> None:
    hopeless = [(float(i), 1_000_000, 100, 10) for i in range(50)]
    replay = DecodeReplay(hopeless, COSTS, 100, Promise(gap_s=0.006))
    assert smallest_need(replay, 0.99, 1, 16, 0).num_workers == 1


LONG = 40_000
"""tokens of an answer that runs for minutes"""


def test_answers_that_began_before_the_window_run_along_and_are_not_judged() -> None:
    """With them a batch is too large for the gap; alone each answer of the window is in time."""
    typical = TypicalWorker(COSTS, 2048, num_blocks=100_000, block_size=16)
    promised = Promise(gap_s=0.006)
    before = [Arrival(float(at_s), 100, 0, LONG) for at_s in range(20)]
    judged = [Arrival(100.0 + at_s, 100, 0, 10) for at_s in range(20)]

    def replay(arrivals: list[Arrival], since_s: float) -> DecodeReplay:
        return DecodeReplay.of(arrivals, [0.0] * len(arrivals), typical, promised, since_s)

    assert replay(judged, 100.0).share(1) == 1
    assert replay([*before, *judged], 100.0).share(1) == 0
    assert replay([*before, *judged], 100.0).share(20) == 1
    latest = replay([*before, *judged], 0.0).latest(5)
    assert latest.share(1) == 0
    assert len(latest.sequences) == len(before) + 5, "those that are over are left out"


def test_an_answer_that_was_over_before_the_window_is_left_out() -> None:
    typical = TypicalWorker(COSTS, 2048, num_blocks=100_000, block_size=16)
    arrivals = [Arrival(0.0, 100, 0, 10), Arrival(0.0, 100, 0, 3000), Arrival(90.0, 100, 0, 10)]
    replay = DecodeReplay.of(arrivals, [0.0] * 3, typical, Promise(gap_s=0.02), 50.0)
    assert [sequence[2] for sequence in replay.sequences] == [3000, 10]


def test_an_answer_that_no_worker_has_blocks_for_is_left_out() -> None:
    typical = TypicalWorker(COSTS, 2048, num_blocks=10, block_size=16)
    arrivals = [Arrival(0.0, 1000, 0, 10), Arrival(1.0, 100, 0, 10)]
    replay = DecodeReplay.of(arrivals, [0.0, 0.0], typical, Promise())
    assert [sequence[1] for sequence in replay.sequences] == [100]


def test_the_latest_none_are_none_and_all_are_as_many_as_came() -> None:
    """None to be judged are in time; three prompts of 5 s at once keep one worker 10 s too long."""
    prompts = PrefillReplay([(0.0, 5.0)] * 3, wait_s=1.0, growth=1.2)
    answers = DecodeReplay([(0.0, 10, 4, 1)] * 3, COSTS, 1, Promise(wait_s=0.0), growth=1.2)
    assert prompts.share(1) < 1
    assert answers.share(1) < 1
    for of in (prompts, answers):
        assert of.latest(0).share(1) == 1.0
        assert of.latest(9).share(1) == of.share(1)
        assert of.latest(9).growth == 1.0


class Steps:
    """A replay whose share reaches the target at `enough`, and counts what it is asked."""

    growth = 1.0

    def __init__(self, enough: int) -> None:
        self.enough = enough
        self.num_asked = 0

    def share(self, num_workers: int, at_least: float = 0.0, strictness: float = 1.0) -> float:
        self.num_asked += 1
        return 1.0 if num_workers >= self.enough else 0.5

    def latest(self, num_requests: int) -> "Steps":
        return self


@given(
    enough=st.integers(1, 300),
    least=st.integers(1, 20),
    most=st.integers(20, 300),
    guess=st.integers(0, 400),
)
def test_the_smallest_number_is_found_wherever_the_search_begins(
    enough: int, least: int, most: int, guess: int
) -> None:
    need = smallest_need(Steps(enough), 0.99, least, most, guess)
    assert need.num_workers == min(max(enough, least), most)


@pytest.mark.parametrize("guess", [40, 41])
def test_a_need_that_hardly_changed_takes_few_replays(guess: int) -> None:
    replay = Steps(40)
    smallest_need(replay, 0.99, 1, 300, guess)
    assert replay.num_asked <= 3


def test_a_need_explains_itself_with_both_shares() -> None:
    promise = "of the last 15 minutes' 812 prompts would have waited at most 1 s"
    assert sentence(Need(4, 0.994, 0.961), "prefill", 0.99, promise) == (
        f"with 3 prefill workers 96.1 % {promise}, with 4 99.4 %"
    )
    assert sentence(Need(4, 0.994, 0.5), "prefill", 0.99, promise).startswith(
        "with 3 prefill workers fewer than 94.0 %"
    )
    assert sentence(Need(1, 1.0, None), "prefill", 0.99, promise).startswith(
        "with 1 prefill worker 100.0 %"
    )


def test_a_cold_workers_costs_do_not_count_beside_a_warm_ones() -> None:
    slow = StepCosts(*(50 * cost for cost in COSTS))
    cold, warm = worker("w-0", age_s=19.0, costs=slow), worker("w-1", age_s=21.0)
    mixed, alone = TypicalWorker.of([cold, warm]), TypicalWorker.of([cold])
    assert mixed is not None
    assert alone is not None
    assert mixed.costs == COSTS
    assert alone.costs == slow
