"""Ticks of a chart's axis: enough of them to read a value off, whatever its range."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.plot.axis import Axis


@pytest.mark.parametrize(
    ("low", "high", "log", "ticks"),
    [
        (0, 100, False, [0, 20, 40, 60, 80, 100]),
        (1, 1000, True, [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000]),
        (0.001, 10_000, True, [10.0**power for power in range(-3, 5)]),
        (13, 28, True, [15, 20, 25]),
        (400, 2500, True, [500, 1000, 2000]),
        (0.9, 0.99, False, [0.9, 0.92, 0.94, 0.96, 0.98]),
    ],
)
def test_ticks_by_range(low: float, high: float, log: bool, ticks: list[float]) -> None:
    assert Axis("x", low, high, log=log).ticks == pytest.approx(ticks)


@given(st.floats(1e-3, 1e6), st.floats(1.5, 1e6), st.booleans())
def test_there_are_enough_and_all_are_on_the_axis(low: float, factor: float, log: bool) -> None:
    axis = Axis("x", low, low * factor, log=log)
    ticks = axis.ticks
    assert 2 <= len(ticks) <= 16
    assert ticks == sorted(ticks)
    assert all(0 <= axis.share(tick) <= 1 for tick in ticks)


def test_a_bare_axis_has_none() -> None:
    assert Axis("x", 0, 1, bare=True).ticks == []
