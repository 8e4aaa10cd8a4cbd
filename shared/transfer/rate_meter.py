"""How fast a link carries KV, counting only time in which something could move.

That is while a read is unanswered: waiting for a prompt to be computed is not the link's. A link
that has answered all it was asked measures how soon it answers, not how much it could carry: a
small read takes its latency, on any link. Such a time may raise a rate and never lowers it, nor
is it a first rate. The time in which the link was full is therefore measured apart.
"""

from dataclasses import dataclass

from shared.clock import Clock
from shared.protocol import Attempt

WINDOW_S = 0.02
"""busy time of one measurement: short, so that a few small hand-overs after a hiccup are enough"""
FILLING_BYTES = 128 * 2**20
"""a read of so much fills a link by itself: its latency is a small part of the time"""
_WEIGHT = 0.1


@dataclass
class _Window:
    """One measurement under way."""

    busy_s: float = 0.0
    num_bytes: int = 0


class RateMeter:
    """Bytes per busy second: a moving average over windows."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._active: set[Attempt] = set()
        self._since_s = 0.0
        self._is_full = False
        self._full, self._other = _Window(), _Window()
        self._bytes_s = 0.0

    def activate(self, attempt: Attempt, num_bytes: int = 0) -> None:
        """One more read of it, of so many bytes where that is known, is asked for: its bytes could
        move. A link that has not answered all before is full, until it has."""
        self._measure()
        self._is_full |= bool(self._active) or num_bytes >= FILLING_BYTES
        self._active.add(attempt)

    def rest(self, attempt: Attempt) -> None:
        """Nothing of it can move just now."""
        self._measure()
        self._active.discard(attempt)
        self._is_full &= bool(self._active)

    def move(self, num_bytes: int) -> None:
        self._window.num_bytes += num_bytes
        self._measure()

    @property
    def bytes_s(self) -> float:
        """0 until the link was full once; afterwards above 0, also of a link that stands still."""
        self._measure()
        return self._bytes_s

    @property
    def _window(self) -> _Window:
        return self._full if self._is_full else self._other

    def _measure(self) -> None:
        now_s = self._clock.monotonic_s()
        window = self._window
        if self._active:
            window.busy_s += now_s - self._since_s
        self._since_s = now_s
        if window.busy_s < WINDOW_S:
            return
        seen = max(window.num_bytes, 1) / window.busy_s
        if self._is_full and not self._bytes_s:
            self._bytes_s = seen
        elif self._bytes_s and (self._is_full or seen > self._bytes_s):
            self._bytes_s += _WEIGHT * (seen - self._bytes_s)
        window.busy_s, window.num_bytes = 0.0, 0
