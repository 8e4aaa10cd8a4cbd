"""Workers much slower than the others of their role: no request goes there for a while. Pure.

A machine that throttles, or whose GPU is shared, breaks nothing, so no breaker opens: its answers
come at a third of the pace, and routing by the number of sequences sends it as many as the others.
What runs there goes on. At most a third of a role is left out, the slowest first.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from services.gateway.owner.links.worker_view import Pace

FACTOR = 3.0
"""slower than the median of the role"""
LEAST_S = 0.02
"""and slower by this"""
ONE_OF = 3
"""of a role may be left out"""
FIRST_PAUSE_S = 30.0
MAX_PAUSE_S = 300.0


class _Pause(NamedTuple):
    until_s: float
    length_s: float


class Outliers:
    """`now_s` is any monotonic clock's."""

    def __init__(self) -> None:
        self._pauses: dict[str, _Pause] = {}

    def look(self, paces: Sequence[Pace], now_s: float) -> None:
        """`paces`: of all workers there are."""
        known = {pace.incarnation for pace in paces}
        self._pauses = {inc: pause for inc, pause in self._pauses.items() if inc in known}
        for role in {pace.role for pace in paces}:
            self._look_at([pace for pace in paces if pace.role == role], now_s)

    def left_out(self, now_s: float) -> frozenset[str]:
        """Incarnations."""
        if not self._pauses:
            return frozenset()
        return frozenset(inc for inc, pause in self._pauses.items() if now_s < pause.until_s)

    def _look_at(self, role: Sequence[Pace], now_s: float) -> None:
        gaps_s = {pace.incarnation: pace.gap_s for pace in role if pace.gap_s is not None}
        out = self.left_out(now_s)
        room = len(role) // ONE_OF - sum(pace.incarnation in out for pace in role)
        slow = _slow(gaps_s)
        for inc in [inc for inc in slow if inc not in out][: max(room, 0)]:
            before = self._pauses.get(inc)
            length_s = min(2 * before.length_s, MAX_PAUSE_S) if before else FIRST_PAUSE_S
            self._pauses[inc] = _Pause(now_s + length_s, length_s)
        for inc in gaps_s.keys() - set(slow) - out:
            self._pauses.pop(inc, None)


def _slow(gaps_s: Mapping[str, float]) -> list[str]:
    """The slowest first."""
    if not gaps_s:
        return []
    limit_s = statistics.median(gaps_s.values())
    limit_s = max(FACTOR * limit_s, limit_s + LEAST_S)
    slow = [inc for inc, gap_s in gaps_s.items() if gap_s > limit_s]
    return sorted(slow, key=lambda inc: (-gaps_s[inc], inc))
