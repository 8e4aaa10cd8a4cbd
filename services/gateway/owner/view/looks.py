"""What totals have grown by in the last minute, or hour, from looks at them."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from shared.telemetry.attainment import Kept

MAX_LOOKS = 120
"""kept; half of them, and a step more, reach over the whole time"""


@dataclass(frozen=True)
class Look:
    """Totals since the start, at one time."""

    at_s: float
    counts: Mapping[str, int]
    gaps: Sequence[int]
    """token gaps by size"""
    kept: Mapping[str, Kept]
    """by objective"""


class Looks:
    """Those that a time up to now is told by."""

    def __init__(self, length_s: float, step_s: float) -> None:
        """`step_s`: between two that are kept, at least."""
        self._length_s = length_s
        self._step_s = step_s
        self._looks: deque[Look] = deque(maxlen=MAX_LOOKS)

    def note(self, look: Look) -> None:
        if self._looks and look.at_s - self._looks[-1].at_s < self._step_s:
            return
        self._looks.append(look)
        while len(self._looks) > 1 and look.at_s - self._looks[1].at_s >= self._length_s:
            self._looks.popleft()

    def growth(self, now: Look) -> Look:
        """Since the oldest look, which is about that long ago once there are that many."""
        if not self._looks:
            return now
        then = self._looks[0]
        counts = {name: count - then.counts.get(name, 0) for name, count in now.counts.items()}
        gaps = [count - before for count, before in zip(now.gaps, then.gaps, strict=True)]
        kept = {name: total.since(then.kept[name]) for name, total in now.kept.items()}
        return Look(now.at_s, counts, gaps, kept)


def gap_quantiles(counts: Sequence[int], bounds_s: Sequence[float]) -> dict[str, Any]:
    """Of gaps counted by size: the upper bounds that p50 and p99 lie below, in milliseconds."""
    total = sum(counts)
    told = {"p50": _bound_ms(counts, bounds_s, 0.5), "p99": _bound_ms(counts, bounds_s, 0.99)}
    return {**told, "count": total} if total else {"p50": None, "p99": None, "count": 0}


def _bound_ms(counts: Sequence[int], bounds_s: Sequence[float], share: float) -> float:
    """What is beyond the last bound is told as that."""
    wanted = sum(counts) * share
    for bound_s, so_far in zip(bounds_s, accumulate(counts), strict=False):
        if so_far >= wanted:
            return round(bound_s * 1e3, 3)
    return round(bounds_s[-1] * 1e3, 3)
