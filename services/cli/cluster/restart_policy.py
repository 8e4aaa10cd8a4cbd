"""When a dead process may start again: at once, and at most 5 times in a minute.

A worker that was killed from outside is wanted back at once, also the second time. One that dies at
its start uses up its five, then waits until the minute is over. An engine that dies does not end
its worker: see `shared.worker.lives`.
"""

from collections import deque

DELAY_S = 0.2
"""time for the dead process's ports and memory to be free"""
WINDOW_S = 60.0
MAX_STARTS_PER_WINDOW = 5


class RestartPolicy:
    """Of one process."""

    def __init__(self) -> None:
        self._starts: deque[float] = deque(maxlen=MAX_STARTS_PER_WINDOW)

    def next_delay_s(self, now_s: float) -> float:
        """Seconds to wait before the restart that this call grants."""
        start_s = now_s + DELAY_S
        if len(self._starts) == MAX_STARTS_PER_WINDOW:
            start_s = max(start_s, self._starts[0] + WINDOW_S)
        self._starts.append(start_s)
        return start_s - now_s
