"""The knee of a sweep: the batch up to which another sequence still pays.

Rule: the largest batch such that each step of the sweep up to it brought, for each sequence that
it added, at least half of the tokens a second that a sequence of the smallest batch has.

It is a rule of marginal gain. The largest distance to the chord (Satopaa et al., "Finding a
Kneedle in a Haystack", 2011) would move with the end of the sweep, and name a knee of every curve
that bends.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

SHARE = 0.5


@dataclass(frozen=True)
class Knee:
    """What a sweep says."""

    batch: int
    reached: bool
    """False: all steps paid, so the knee is at the largest batch or beyond it"""


def find_knee(rates: Sequence[tuple[int, float]]) -> Knee:
    """`rates`: (batch, tokens a second), by batch; at least one."""
    first, rate = rates[0]
    least = SHARE * rate / first
    for (batch, low), (larger, high) in pairwise(rates):
        if (high - low) / (larger - batch) < least:
            return Knee(batch, reached=True)
    return Knee(rates[-1][0], reached=False)
