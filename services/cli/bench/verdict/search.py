"""Which rate a topology is tried at next. Pure.

From the first rate up by doubling while the limits are held, or down by halving while they are not;
between a rate that held and one that did not, the middle, until they are close.
"""

from collections.abc import Mapping
from math import sqrt

MOST_POINTS = 8
CLOSE = 1.05
"""two rates apart by less are neighbours"""


def next_rate(
    held: Mapping[float, bool], first: float, lowest: float = 0.0, most: int = MOST_POINTS
) -> float | None:
    """`held`: whether the limits were held at each rate tried so far. None: the search is over, as
    neighbours were found, `most` rates were tried, or the next one is below `lowest`."""
    if len(held) >= most:
        return None
    bracket = bracket_of(held)
    rate = _within(bracket) if all(bracket) else _beyond(bracket, first)
    if rate is None or rate < lowest or rate in held:
        return None
    return rate


def bracket_of(held: Mapping[float, bool]) -> tuple[float | None, float | None]:
    """The highest rate that held and the lowest that did not."""
    kept = [rate for rate, is_held in held.items() if is_held]
    failed = [rate for rate, is_held in held.items() if not is_held]
    return max(kept, default=None), min(failed, default=None)


def _beyond(bracket: tuple[float | None, float | None], first: float) -> float:
    low, high = bracket
    if low is not None:
        return low * 2
    return first if high is None else high / 2


def _within(bracket: tuple[float | None, float | None]) -> float | None:
    low, high = bracket
    assert low is not None
    assert high is not None
    return None if high / low < CLOSE else rounded(sqrt(low * high))


def rounded(rate: float) -> float:
    """To four digits, so that a person can ask for the same rate."""
    return float(f"{rate:.4g}")
