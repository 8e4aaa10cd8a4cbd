"""The sizes that --tune tries, and the rule by which it chooses one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.engine.loading.tuning.step_choice import (
    NEARLY,
    PATIENCE,
    TimedStep,
    choose,
    doubled,
    reachable,
    seq_sizes,
    token_sizes,
)


def timed(*steps: tuple[int, float]) -> list[TimedStep]:
    """(size, ms), all of whose tokens count."""
    return [TimedStep(size, size, ms / 1e3) for size, ms in steps]


def test_more_is_chosen_while_it_brings_more() -> None:
    steps = timed((1, 10.0), (2, 10.0), (4, 11.0), (8, 20.0), (16, 40.0))
    assert choose(steps, 1.0).size == 8  # 16 brings what 8 brings
    assert choose(steps, 0.015).size == 4
    assert choose(steps, 0.01).size == 2


def test_what_brings_hardly_more_is_not_worth_a_longer_step() -> None:
    assert choose(timed((64, 10.0), (128, 19.6)), 1.0).size == 64
    assert choose(timed((64, 10.0), (128, 18.9)), 1.0).size == 128


STEPS = st.lists(st.floats(1e-4, 1.0), min_size=1, max_size=12).map(
    lambda times: [TimedStep(2**at, 2**at, time_s) for at, time_s in enumerate(times)]
)


@given(steps=STEPS, wanted_s=st.floats(1e-4, 1.0))
def test_the_choice_keeps_the_limit_and_nothing_smaller_is_as_good(
    steps: list[TimedStep], wanted_s: float
) -> None:
    limit_s = reachable(wanted_s, steps[0].seconds_s)
    found = choose(steps, limit_s)
    kept = [step for step in steps if step.seconds_s <= limit_s]
    assert found in kept
    best = max(step.rate for step in kept)
    assert found.rate >= NEARLY * best
    assert all(step.rate < NEARLY * best for step in kept if step.size < found.size)


def test_a_gap_that_no_step_keeps_gives_way() -> None:
    assert reachable(0.05, 0.01) == 0.05
    assert reachable(0.05, 0.04) == PATIENCE * 0.04


def test_sizes_double_up_to_the_largest() -> None:
    assert doubled(1, 1) == (1,)
    assert doubled(1, 6) == (1, 2, 4, 6)
    assert doubled(64, 512) == (64, 128, 256, 512)


@pytest.mark.parametrize(
    ("given_seqs", "most", "most_tokens", "expected"),
    [
        (0, 8, 8192, (1, 2, 4, 8)),
        (7, 8, 8192, (7,)),
        (0, 8, 20, (1, 2, 4, 5)),  # with a block of 16 of a prompt
        (0, 8, 4, (1,)),
    ],
)
def test_sequences_that_a_step_can_advance(
    given_seqs: int, most: int, most_tokens: int, expected: tuple[int, ...]
) -> None:
    assert seq_sizes(given_seqs, most, most_tokens, 16) == expected


@given(
    num_seqs=st.integers(1, 4096), block_size=st.integers(1, 256), most=st.sampled_from((2048, 64))
)
def test_each_step_has_tokens_for_all_sequences_and_a_block(
    num_seqs: int, block_size: int, most: int
) -> None:
    sizes = token_sizes(0, most, num_seqs, block_size)
    assert sizes[0] >= num_seqs - 1 + block_size  # or a Scheduler refuses them
    assert list(sizes) == sorted(set(sizes))
    assert token_sizes(100, most, num_seqs, block_size) == (100,)
