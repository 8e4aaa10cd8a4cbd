"""Time as an argument: the real clock of processes; tests have one of their own.

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
