"""A clock for tests of what time does."""


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
