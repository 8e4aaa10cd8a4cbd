"""When a dead process may start again: 1, 2, 4, 8, 10, 10 ... s, at most 5 in a minute."""

from collections import deque

FIRST_DELAY_S = 1.0
LONGEST_DELAY_S = 10.0
WINDOW_S = 60.0
MAX_STARTS_PER_WINDOW = 5


class RestartPolicy:
    """Of one process. A life longer than the window starts the delays over."""

    def __init__(self) -> None:
        self._starts: deque[float] = deque()
        self._num_quick_deaths = 0

    def next_delay_s(self, now_s: float, lived_s: float) -> float:
        """Seconds to wait before the restart that this call grants."""
        self._num_quick_deaths = 1 if lived_s >= WINDOW_S else self._num_quick_deaths + 1
        delay_s = min(FIRST_DELAY_S * 2.0 ** min(self._num_quick_deaths - 1, 10), LONGEST_DELAY_S)
        while self._starts and self._starts[0] <= now_s + delay_s - WINDOW_S:
            self._starts.popleft()
        if len(self._starts) >= MAX_STARTS_PER_WINDOW:
            oldest = self._starts[-MAX_STARTS_PER_WINDOW]
            delay_s = max(delay_s, oldest + WINDOW_S - now_s)
        self._starts.append(now_s + delay_s)
        return delay_s
