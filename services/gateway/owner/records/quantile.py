"""A quantile by nearest rank: always a value that was measured."""

from collections.abc import Iterable
from math import ceil, inf


def quantile(values: Iterable[float], share: float) -> float | None:
    """Of values in any order; None of none. Of few values a high one is their largest."""
    ordered = sorted(values)
    return ordered[max(ceil(len(ordered) * share), 1) - 1] if ordered else None


def limit_of(values: Iterable[float], share: float) -> float:
    """The same as a limit that some value may exceed; none exceeds that of no values."""
    found = quantile(values, share)
    return inf if found is None else found
