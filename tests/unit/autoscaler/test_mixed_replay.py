"""What share of requests would have been in time with n workers that do both.

Guarded against: a need that forgets the prompts' computing, or the tokens that wait for it, and one
that no number of workers meets.
"""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.autoscaler.planning.mixed_replay import LEAST_WORKERS, MOST_REQUESTS, MixedReplay
from services.autoscaler.planning.need import smallest_need
from services.autoscaler.planning.prefill_replay import computing_s
from services.autoscaler.planning.typical_worker import TypicalWorker
from services.autoscaler.view import Arrival, Promise
from shared.message_parts.step_costs import StepCosts
from tests.support.cell_views import COSTS, poisson

PROMISE = Promise()
FLAT = StepCosts(step_s=0.01, row_s=0.002, chunk_token_s=1e-3)
"""a step takes 10 ms, 2 ms more for each sequence, and 1 ms more for each token of a prompt"""
CROWDS = st.lists(
    st.builds(
        Arrival, st.floats(0, 30), st.integers(1, 8000), st.integers(0, 500), st.integers(1, 200)
    ),
    min_size=1,
    max_size=40,
).map(lambda found: sorted(found, key=lambda item: item.at_s))


def replay(
    arrivals: Sequence[Arrival],
    promise: Promise = PROMISE,
    costs: StepCosts = COSTS,
    num_blocks: int = 4000,
    **fields: float,
) -> MixedReplay:
    worker = TypicalWorker(costs, 2048, num_blocks, 16)
    return MixedReplay.of(arrivals, computing_s(arrivals, worker), worker, promise, **fields)


def needed(of: MixedReplay) -> int:
    return smallest_need(of, 0.99, 1, 32, 0).num_workers


def test_a_gap_is_as_long_as_a_step_with_a_chunk_while_a_prompt_is_computed() -> None:
    """10 steps of 12 ms; the second request puts its 80 tokens into one, and joins for 6."""
    arrivals = [Arrival(0.0, 50, 0, 11), Arrival(0.06 + 2.5 * 0.012, 80, 0, 20)]
    mean_s = (3 * 0.012 + 0.092 + 6 * 0.014) / 10
    for gap_s, share in ((mean_s + 1e-6, 1.0), (mean_s - 1e-6, 0.5)):
        assert replay(arrivals, Promise(gap_s=gap_s), FLAT).share(1) == share
        assert replay(arrivals, Promise(gap_s=gap_s), FLAT).share(2) == 1.0


def test_a_prompt_waits_for_those_before_it_and_longer_for_what_decodes() -> None:
    """2,000 tokens take 2.01 s, and 0.2 ms more for a sequence that decodes meanwhile."""
    arrivals = [Arrival(0.0, 10, 0, 1000), Arrival(1.0, 2000, 0, 1), Arrival(1.1, 2000, 0, 1)]
    limit_s = 1.0 + 2.012 - 1.1 + 0.002
    for wait_s, share in ((limit_s + 0.02, 1.0), (limit_s - 0.02, 2 / 3)):
        assert replay(arrivals, Promise(wait_s, 1.0), FLAT).share(1) == pytest.approx(share)
    assert replay(arrivals, Promise(0.02, 1.0), FLAT).share(3) == 1.0


def test_prompts_that_wait_together_are_computed_in_one_step() -> None:
    """All but the first: 0.11 s of the first, and 5 of 0.1 s in the step after it."""
    arrivals = [Arrival(0.001 * at, 100, 0, 1) for at in range(6)]
    last_s = 0.11 + 0.01 + 0.5 - 0.005 - 0.11
    assert replay(arrivals, Promise(last_s + 1e-6), FLAT).share(1) == 1.0
    assert replay(arrivals, Promise(last_s - 1e-6), FLAT).share(1) < 1.0


def test_an_answer_waits_for_blocks_and_all_behind_it() -> None:
    arrivals = [Arrival(0.0, 100, 0, 100), Arrival(0.5, 100, 0, 100), Arrival(0.6, 10, 0, 1)]
    assert replay(arrivals, Promise(0.5), FLAT, num_blocks=20).share(1) == pytest.approx(1 / 3)
    assert replay(arrivals, Promise(0.5), FLAT, num_blocks=40).share(1) == 1.0
    assert replay(arrivals, Promise(0.5), FLAT, num_blocks=20).share(2) == 1.0


def test_a_load_of_prompts_alone_needs_workers_for_their_computing() -> None:
    """8 a second of 0.2 s each. One token each: no gap, no blocks."""
    arrivals = poisson(8.0, 600.0, num_output=200)
    prompts = [Arrival(item.at_s, item.num_prompt_tokens, 0, 1) for item in arrivals]
    assert needed(replay(prompts)) in (3, 4)


def test_a_load_of_answers_alone_needs_workers_for_their_gaps() -> None:
    """10 a second of 300 tokens, in steps of 12 ms at most: 36 run at once. Prompts are nothing."""
    arrivals = [Arrival(item.at_s, 16, 0, 300) for item in poisson(10.0, 600.0, num_output=300)]
    alone = replay(arrivals, Promise(gap_s=0.012))
    assert alone.share(1) < 0.9
    assert needed(alone) == 2
    assert needed(replay(arrivals, Promise(gap_s=0.05))) == 1


def test_a_load_that_fills_the_kv_blocks_needs_workers_for_their_blocks() -> None:
    """3 a second of 100 blocks each for 3 s: 900 blocks, of which a worker has 400."""
    arrivals = [Arrival(item.at_s, 1200, 0, 400) for item in poisson(3.0, 600.0)]
    easy = Promise(gap_s=1.0)
    assert needed(replay(arrivals, easy)) == 1
    assert needed(replay(arrivals, easy, num_blocks=400)) >= 3


def test_prompts_between_the_tokens_cost_more_than_either_alone() -> None:
    """What the need was before prompts counted: that of the answers."""
    arrivals = poisson(6.0, 600.0, num_output=200)
    gap = Promise(gap_s=0.02)
    answers = [Arrival(item.at_s, 1, 0, item.num_output_tokens) for item in arrivals]
    prompts = [Arrival(item.at_s, item.num_prompt_tokens, 0, 1) for item in arrivals]
    assert needed(replay(arrivals, gap)) > max(
        needed(replay(answers, gap)), needed(replay(prompts, gap))
    )


@given(arrivals=CROWDS, num_workers=st.integers(1, 6), gap_s=st.sampled_from([0.006, 0.02, 0.1]))
@settings(max_examples=100)
def test_a_share_is_one_and_more_workers_than_requests_make_nobody_late(
    arrivals: list[Arrival], num_workers: int, gap_s: float
) -> None:
    of = replay(arrivals, Promise(gap_s=gap_s))
    assert 0 <= of.share(num_workers) <= 1
    assert replay(arrivals, Promise(gap_s=0.1)).share(len(arrivals)) >= 0.9


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("gap_s", [0.02, 0.05])
def test_one_more_worker_never_lowers_the_share_materially(seed: int, gap_s: float) -> None:
    """Requests meet others there, so a few may be late that were not."""
    of = replay(poisson(6.0, 600.0, num_output=100, seed=seed), Promise(gap_s=gap_s))
    shares = [of.share(number) for number in range(1, 13)]
    assert all(after >= before - 0.005 for before, after in pairwise(shares))
    assert shares[-1] >= 0.99


@given(arrivals=CROWDS, num_workers=st.integers(1, 4), at_least=st.floats(0.5, 1))
@settings(max_examples=100)
def test_a_replay_that_stops_early_is_below_the_target_as_the_whole_one_is(
    arrivals: list[Arrival], num_workers: int, at_least: float
) -> None:
    of = replay(arrivals, Promise(0.2, 0.02))
    whole, stopped = of.share(num_workers), of.share(num_workers, at_least)
    assert stopped == whole or max(stopped, whole) < at_least


def test_a_stricter_replay_and_one_that_grows_find_fewer_in_time() -> None:
    arrivals = poisson(6.0, 600.0, num_output=100)
    gap = Promise(gap_s=0.03)
    plain = replay(arrivals, gap)
    assert plain.share(3, strictness=0.8) < plain.share(3)
    grown = replay(arrivals, gap, growth=1.3)
    assert grown.share(3) < plain.share(3) < replay(arrivals, gap, growth=0.75).share(3)
    assert needed(grown) >= needed(plain)
    assert grown.latest(10**6).share(3) == plain.share(3)


def test_answers_that_began_before_the_window_run_along_and_are_not_judged() -> None:
    before = [Arrival(float(at_s), 100, 0, 40_000) for at_s in range(20)]
    judged = [Arrival(100.0 + 3 * at, 100, 0, 10) for at in range(20)]
    promised = Promise(gap_s=0.0065)
    assert replay(judged, promised, since_s=100.0, num_blocks=10**6).share(1) > 0.9
    crowded = replay([*before, *judged], promised, since_s=100.0, num_blocks=10**6)
    assert crowded.share(1) == 0
    assert len(crowded.latest(5).requests) == len(before) + 5
    assert crowded.latest(0).share(1) == 1.0


def test_what_no_number_of_workers_helps_asks_for_none() -> None:
    slow = [Arrival(float(at), 3000, 0, 100) for at in range(50)]
    assert needed(replay(slow, Promise(gap_s=0.003))) == 1
    assert not replay(slow, num_blocks=10).requests


def test_of_many_requests_some_workers_with_their_part_say_the_same() -> None:
    """Twice as many as are replayed, so every other worker and request are."""
    arrivals = poisson(2.2 * MOST_REQUESTS / 900, num_output=20)
    promise = Promise(gap_s=0.05)
    of = replay(arrivals, promise)
    assert of.share(LEAST_WORKERS + 10) == pytest.approx(
        replay(arrivals[: MOST_REQUESTS - 100], promise).share(LEAST_WORKERS + 10), abs=0.01
    )
