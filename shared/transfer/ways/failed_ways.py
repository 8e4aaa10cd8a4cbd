"""Which ways failed lately, by source: two failures in turn, and a way is left for a while."""

from dataclasses import dataclass

from shared.clock import Clock
from shared.errors import CannotMapError, CorruptPieceError

MAX_FAILURES = 2
LEAVE_S = 300.0
"""then it gets one more chance, as it does at once when either worker starts again"""
BLAMED = (CorruptPieceError, CannotMapError)
"""what speaks against a way. A lost peer does not, nor do blocks that were used again"""


@dataclass
class _Record:
    num_failures: int = 0
    error: str = ""
    """the last one"""
    until_s: float = 0.0


class FailedWays:
    """Of one source."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._records: dict[str, _Record] = {}

    def note(self, way: str, error: BaseException | None) -> bool:
        """How a pull by this way ended. True: from now on it is left."""
        if error is None:
            self._records.pop(way, None)
            return False
        if not isinstance(error, BLAMED):
            return False
        record = self._records.setdefault(way, _Record())
        if self._clock.monotonic_s() < record.until_s:
            return False  # of a pull that was begun before
        record.num_failures += 1
        record.error = str(error)
        if record.num_failures < MAX_FAILURES:
            return False
        record.num_failures = MAX_FAILURES - 1
        record.until_s = self._clock.monotonic_s() + LEAVE_S
        return True

    def why_left(self, way: str) -> str:
        """Nothing if it is not."""
        record = self._records.get(way)
        if record is None or self._clock.monotonic_s() >= record.until_s:
            return ""
        return f"{way} failed {MAX_FAILURES} times ({record.error})"

    @property
    def until_s(self) -> float:
        """When the first of those that are left gets its chance; without end if none is left."""
        now_s = self._clock.monotonic_s()
        left = (record.until_s for record in self._records.values() if record.until_s > now_s)
        return min(left, default=float("inf"))
