"""The knee of a sweep: the batch up to which another sequence still pays.

Rule: the largest batch such that each step of the sweep up to it brought, for each sequence that
it added, at least half of the tokens a second that a sequence of the smallest batch has.

Throughput bends one way, so a point below the line between two others is a disturbed measurement
and is left out: the rule looks at the upper hull of the points.

It is a rule of marginal gain. The largest distance to the chord (Satopaa et al., "Finding a
Kneedle in a Haystack", 2011) would move with the end of the sweep, and name a knee of every curve
that bends.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

Rate = tuple[int, float]
"""(batch, tokens a second)"""
SHARE = 0.5


@dataclass(frozen=True)
class Knee:
    """What a sweep says."""

    batch: int
    reached: bool
    """False: all steps paid, so the knee is at the largest batch or beyond it"""


def find_knee(rates: Sequence[Rate]) -> Knee:
    """`rates`: by batch; at least one."""
    first, rate = rates[0]
    for low, high in pairwise(_upper_hull(rates)):
        if _gain(low, high) < SHARE * rate / first:
            return Knee(low[0], reached=True)
    return Knee(rates[-1][0], reached=False)


def _upper_hull(rates: Sequence[Rate]) -> list[Rate]:
    hull: list[Rate] = []
    for point in rates:
        while len(hull) > 1 and _gain(hull[-2], hull[-1]) < _gain(hull[-2], point):
            hull.pop()
        hull.append(point)
    return hull


def _gain(low: Rate, high: Rate) -> float:
    """Tokens a second for each sequence added."""
    return (high[1] - low[1]) / (high[0] - low[0])
