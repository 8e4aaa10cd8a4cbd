"""The error of predictions: the 90th percentile of the latest, and only of those."""

import math

import hypothesis.strategies as st
from hypothesis import given

from shared.engine.running.held_out_error import NUM_RECENT, HeldOutError

errors = st.lists(st.floats(0, 2), min_size=1, max_size=NUM_RECENT + 60)


@given(errors)
def test_nine_of_ten_of_the_latest_errors_are_at_most_its_p90(relative: list[float]) -> None:
    error = HeldOutError()
    for one in relative:
        error.note(1.0 + one, 1.0)
    recent = sorted((1.0 + one) - 1.0 for one in relative[-NUM_RECENT:])
    assert error.count == len(relative)
    below = sum(one <= error.p90 for one in recent)
    above = sum(one >= error.p90 for one in recent)
    assert error.p90 in recent
    assert below >= math.floor(0.9 * len(recent))
    assert above >= math.floor(0.1 * len(recent))


def test_before_the_first_it_is_zero() -> None:
    assert HeldOutError().p90 == 0.0
    assert HeldOutError().count == 0


def test_too_long_and_too_short_count_alike() -> None:
    long, short = HeldOutError(), HeldOutError()
    long.note(1.5, 1.0)
    short.note(0.5, 1.0)
    assert long.p90 == short.p90 == 0.5
