"""How often requests end here, to tell a refused client when to come back; and how often they leave
the line, to tell how long another would wait in it."""

from collections import deque

WINDOW_S = 30.0
LEAST_S = 0.1
"""before anything was measured"""
LEAST_ENDS = 8
"""from which something is expected of the next"""


class Throughput:
    """The mean time from one end to the next over the last half minute. Times in which nothing
    ran are left out: they say what was asked for, not what could have ended."""

    def __init__(self) -> None:
        self._gaps: deque[tuple[float, float]] = deque()
        """(when a request ended, seconds since the end before it, or since there was work)"""
        self._since_s: float | None = None
        """the last end, or when work came after a pause; None while there is none"""

    def note_work(self, now_s: float) -> None:
        """A request came."""
        if self._since_s is None:
            self._since_s = now_s

    def note_end(self, now_s: float, *, idle: bool) -> None:
        """A request ended; `idle`: it was the last one."""
        if self._since_s is not None:
            self._forget(now_s)
            self._gaps.append((now_s, now_s - self._since_s))
        self._since_s = None if idle else now_s

    def per_end_s(self, now_s: float) -> float:
        """Seconds from one end to the next."""
        self._forget(now_s)
        waited_s = now_s - self._since_s if self._since_s is not None else 0.0
        gaps_s = [gap_s for _, gap_s in self._gaps]
        mean_s = sum(gaps_s) / len(gaps_s) if gaps_s else LEAST_S
        return max(mean_s, waited_s if waited_s > LEAST_S else 0.0)

    def expected_end_s(self, now_s: float) -> float:
        """The same of those to come. A pause after many ends says little: they may come together.
        0 of too few ends: nothing is known."""
        self._forget(now_s)
        if self._since_s is None or len(self._gaps) < LEAST_ENDS:
            return 0.0
        waited_s = now_s - self._since_s
        gaps_s = [gap_s for _, gap_s in self._gaps]
        return (sum(gaps_s) + waited_s) / (len(gaps_s) + 1)

    def _forget(self, now_s: float) -> None:
        while self._gaps and self._gaps[0][0] < now_s - WINDOW_S:
            self._gaps.popleft()
