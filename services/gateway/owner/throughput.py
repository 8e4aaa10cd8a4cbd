"""How fast requests end here, to tell a refused client when to come back."""

from collections import deque

WINDOW_S = 30.0
MAX_RETRY_AFTER_S = 60.0
MIN_RETRY_AFTER_S = 0.1


class Throughput:
    """Requests ended per second over the last half minute."""

    def __init__(self, now_s: float) -> None:
        self._ends: deque[float] = deque()
        self._start_s = now_s

    def note_end(self, now_s: float) -> None:
        self._ends.append(now_s)
        self._forget(now_s)

    def retry_after_s(self, now_s: float, num_ahead: int) -> float:
        """Seconds until `num_ahead` requests have ended at the measured rate.

        While none has ended yet, the time watched so far stands for the first one."""
        self._forget(now_s)
        watched_s = max(min(now_s - self._start_s, WINDOW_S), MIN_RETRY_AFTER_S)
        per_end_s = watched_s / max(len(self._ends), 1)
        return min(max(num_ahead * per_end_s, MIN_RETRY_AFTER_S), MAX_RETRY_AFTER_S)

    def _forget(self, now_s: float) -> None:
        while self._ends and self._ends[0] < now_s - WINDOW_S:
            self._ends.popleft()
