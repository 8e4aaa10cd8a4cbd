"""Time as an argument: a real clock for processes, a manual one for tests.

No safety rule reads a clock; leases, deadlines and back-off do (liveness only).
"""

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds that only go forward, and wall time for traces."""

    def monotonic_s(self) -> float:
        """Seconds since an arbitrary start; never goes back."""

    def wall_ns(self) -> int:
        """Nanoseconds since the Unix epoch, comparable between processes of one host."""


class SystemClock:
    """The machine's clocks."""

    def monotonic_s(self) -> float:
        return time.monotonic()

    def wall_ns(self) -> int:
        return time.time_ns()


class ManualClock:
    """A clock that moves only when told to."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s

    def advance(self, seconds_s: float) -> None:
        if seconds_s < 0:
            raise ValueError("a monotonic clock cannot go back")
        self._now_s += seconds_s

    def monotonic_s(self) -> float:
        return self._now_s

    def wall_ns(self) -> int:
        return round(self._now_s * 1e9)
