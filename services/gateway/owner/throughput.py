"""How often requests end here, to tell a refused client when to come back."""

from collections import deque

WINDOW_S = 30.0
MIN_WATCHED_S = 0.1


class Throughput:
    """Requests ended per second over the last half minute."""

    def __init__(self, now_s: float) -> None:
        self._ends: deque[float] = deque()
        self._start_s = now_s

    def note_end(self, now_s: float) -> None:
        self._ends.append(now_s)
        self._forget(now_s)

    def per_end_s(self, now_s: float) -> float:
        """Seconds from one end to the next.

        While none has ended yet, the time watched so far stands for the first one."""
        self._forget(now_s)
        watched_s = max(min(now_s - self._start_s, WINDOW_S), MIN_WATCHED_S)
        return watched_s / max(len(self._ends), 1)

    def _forget(self, now_s: float) -> None:
        while self._ends and self._ends[0] < now_s - WINDOW_S:
            self._ends.popleft()
