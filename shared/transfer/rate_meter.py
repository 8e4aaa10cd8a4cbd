"""How fast a link carries KV, counting only time in which something could move.

That is while a read is unanswered: waiting for a prompt to be computed is not the link's. A link
that has answered all it was asked measures how soon it answers, not how much it could carry: a
small read takes its latency, on any link. Such a time may raise a rate and never lowers it, nor
is it a first rate.
"""

from shared.clock import Clock
from shared.protocol import Attempt

WINDOW_S = 0.02
"""busy time of one measurement: short, so that a few small hand-overs after a hiccup are enough"""
_WEIGHT = 0.1


class RateMeter:
    """Bytes per busy second: a moving average over windows."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._active: set[Attempt] = set()
        self._since_s = 0.0
        self._is_full = False
        self._busy_s = 0.0
        self._full_s = 0.0
        self._window_bytes = 0
        self._bytes_s = 0.0

    def activate(self, attempt: Attempt) -> None:
        """One more read of it is asked for: its bytes could move. A link that has not answered
        all before is full, until it has."""
        self._measure()
        self._is_full |= bool(self._active)
        self._active.add(attempt)

    def rest(self, attempt: Attempt) -> None:
        """Nothing of it can move just now."""
        self._measure()
        self._active.discard(attempt)
        self._is_full &= bool(self._active)

    def move(self, num_bytes: int) -> None:
        self._window_bytes += num_bytes
        self._measure()

    @property
    def bytes_s(self) -> float:
        """0 until the link was full once; afterwards above 0, also of a link that stands still."""
        self._measure()
        return self._bytes_s

    def _measure(self) -> None:
        now_s = self._clock.monotonic_s()
        if self._active:
            self._busy_s += now_s - self._since_s
        if self._is_full:
            self._full_s += now_s - self._since_s
        self._since_s = now_s
        if self._busy_s < WINDOW_S:
            return
        seen = max(self._window_bytes, 1) / self._busy_s
        was_full = self._full_s > self._busy_s / 2
        known = self._bytes_s
        if not known:
            self._bytes_s = seen if was_full else 0.0
        elif was_full or seen > known:
            self._bytes_s = known + _WEIGHT * (seen - known)
        self._busy_s, self._full_s, self._window_bytes = 0.0, 0.0, 0
