"""What a transport has to move, has moved, and how fast: progress for those who wait, and the
measured rate that admission divides by.

The rate counts only time in which something could move: at prefill while blocks are being sent, at
decode while a read is unanswered. Waiting for a prompt to be computed is not the link's.
"""

from shared.clock import Clock
from shared.protocol import Attempt

WINDOW_S = 0.1
"""busy time of one measurement"""
_WEIGHT = 0.3


class Traffic:
    """The accounts of all attempts that this worker hands over or takes over, in bytes."""

    def __init__(self, clock: Clock) -> None:
        self.moved_bytes = 0
        """since the start, for all attempts; never falls"""
        self._clock = clock
        self._left: dict[Attempt, int] = {}
        self._waiting: set[Attempt] = set()
        self._active: set[Attempt] = set()
        self._rate_bytes_s = 0.0
        self._since_s = 0.0
        self._busy_s = 0.0
        self._window_bytes = 0

    def expect(self, attempt: Attempt, num_bytes: int) -> None:
        """So many bytes are to be moved for it; a later call replaces the number."""
        if attempt not in self._left:
            self._waiting.add(attempt)
        self._left[attempt] = num_bytes

    def begin(self, attempt: Attempt) -> None:
        """Its turn has come."""
        self._waiting.discard(attempt)

    def activate(self, attempt: Attempt) -> None:
        """From now on its bytes could move."""
        self._measure()
        self._active.add(attempt)

    def rest(self, attempt: Attempt) -> None:
        """Nothing of it can move just now."""
        self._measure()
        self._active.discard(attempt)

    def move(self, attempt: Attempt, num_bytes: int) -> None:
        """These bytes have gone, or have come."""
        self.moved_bytes += num_bytes
        self._window_bytes += num_bytes
        self.skip(attempt, num_bytes)
        self._measure()

    def skip(self, attempt: Attempt, num_bytes: int) -> None:
        """These bytes need not move: the other side has them."""
        if attempt in self._left:
            self._left[attempt] = max(0, self._left[attempt] - num_bytes)

    def forget(self, attempt: Attempt) -> None:
        """It is over, whichever way. Safe to call twice."""
        self.rest(attempt)
        self._waiting.discard(attempt)
        self._left.pop(attempt, None)

    def left(self, attempt: Attempt) -> int | None:
        """Bytes of it that have not moved; None if none are expected."""
        return self._left.get(attempt)

    def waits(self, attempt: Attempt) -> bool:
        """Its turn has not come yet."""
        return attempt in self._waiting

    @property
    def left_bytes(self) -> int:
        """Bytes that have not moved, of all attempts."""
        return sum(self._left.values())

    @property
    def rate_bytes_s(self) -> float:
        """Measured bytes per second, a moving average; 0 until something was measured."""
        self._measure()
        return self._rate_bytes_s

    def _measure(self) -> None:
        now_s = self._clock.monotonic_s()
        if self._active:
            self._busy_s += now_s - self._since_s
        self._since_s = now_s
        if self._busy_s < WINDOW_S:
            return
        seen = max(self._window_bytes, 1) / self._busy_s
        known = self._rate_bytes_s
        self._rate_bytes_s = known + _WEIGHT * (seen - known) if known else seen
        self._busy_s, self._window_bytes = 0.0, 0
