"""How far predictions were off what was measured after them, lately."""

from bisect import bisect_left, insort
from collections import deque

NUM_RECENT = 256
SHARE = 0.9


class HeldOutError:
    """Relative errors of the latest predictions, each made before its measurement was known."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque()
        self._sorted: list[float] = []
        self.count = 0
        """errors noted so far, those that are forgotten included"""

    @property
    def p90(self) -> float:
        """Nine of ten of the latest errors are at most this; 0 before the first."""
        return self._sorted[int(SHARE * (len(self._sorted) - 1) + 0.5)] if self._sorted else 0.0

    def note(self, predicted_s: float, measured_s: float) -> None:
        """Both are positive."""
        error = abs(predicted_s - measured_s) / measured_s
        if len(self._recent) == NUM_RECENT:
            del self._sorted[bisect_left(self._sorted, self._recent.popleft())]
        self._recent.append(error)
        insort(self._sorted, error)
        self.count += 1
