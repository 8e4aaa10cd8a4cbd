"""Which rates are tried, and in which order topologies take their turns."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.cli.bench.verdict.schedule import turns
from services.cli.bench.verdict.search import CLOSE, MOST_POINTS, bracket_of, next_rate


def searched(capacity: float, first: float, lowest: float = 0.0) -> dict[float, bool]:
    """What is tried of a cell that holds all rates up to its capacity."""
    held: dict[float, bool] = {}
    while (rate := next_rate(held, first, lowest)) is not None:
        held[rate] = rate <= capacity
    return held


@given(st.floats(0.7, 7.9))
def test_from_a_quarter_of_the_capacity_neighbours_are_found(capacity: float) -> None:
    held = searched(capacity, first=1.0)
    low, high = bracket_of(held)
    assert low is not None
    assert high is not None
    assert low <= capacity < high
    assert high / low < 1.1
    assert len(held) <= MOST_POINTS


@given(st.floats(1e-3, 1e3))
def test_a_search_ends_and_tries_no_rate_twice(capacity: float) -> None:
    held = searched(capacity, first=1.0)
    low, high = bracket_of(held)
    assert len(held) <= MOST_POINTS
    assert low is None or high is None or low < high


def test_it_doubles_halves_and_takes_the_middle() -> None:
    assert list(searched(100.0, 30.0))[:3] == [30.0, 60.0, 120.0]
    assert list(searched(10.0, 30.0))[:3] == [30.0, 15.0, 7.5]
    assert next_rate({30.0: True, 60.0: False}, 30.0) == pytest.approx(42.43)
    assert next_rate({30.0: True, 30.0 * CLOSE - 0.1: False}, 30.0) is None


def test_it_goes_no_lower_than_it_may() -> None:
    assert min(searched(0.1, first=8.0, lowest=2.0)) == 2.0


@pytest.mark.parametrize("num", [2, 3, 4])
def test_turns_are_a_latin_square(num: int) -> None:
    names = [f"t{at}" for at in range(num)]
    order = list(turns(names, range(num), start=1))
    rows = [order[at : at + num] for at in range(0, len(order), num)]
    assert all(len({seed for _, seed in row}) == 1 for row in rows)
    for column in zip(*rows, strict=True):
        assert Counter(name for name, _ in column) == Counter(names)
    assert order[0][0] != next(turns(names, range(num), start=2))[0]
