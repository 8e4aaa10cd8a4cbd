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
STILL_S = 1.0
"""a link of which nothing has come for so long stands still; until then a large read may be on its
way, whose bytes are counted when all of them have come"""
FILLING_BYTES = 128 * 2**20
"""a read of so much fills a link by itself: its latency is a small part of the time"""
_WEIGHT = 0.1
"""of a window; a longer measurement weighs as many windows"""


@dataclass
class _Window:
    """One measurement under way."""

    busy_s: float = 0.0
    num_bytes: int = 0

    def take(self, other: "_Window") -> None:
        """What it measured counts for this one, and it is empty."""
        self.busy_s += other.busy_s
        self.num_bytes += other.num_bytes
        other.busy_s, other.num_bytes = 0.0, 0


class RateMeter:
    """Bytes per busy second: a moving average over windows."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._active: set[Attempt] = set()
        self._since_s = 0.0
        self._is_full = False
        self._full, self._other = _Window(), _Window()
        self._now = _Window()
        """since the link last had nothing to answer, as long as it is not full"""
        self._bytes_s = 0.0

    def activate(self, attempt: Attempt, num_bytes: int = 0) -> None:
        """One more read of it, of so many bytes where that is known, is asked for: its bytes could
        move. A link that has not answered all before is full, until it has."""
        self._measure()
        if self._active or num_bytes >= FILLING_BYTES:
            self._is_full = True
            self._full.take(self._now)
        self._active.add(attempt)

    def rest(self, attempt: Attempt) -> None:
        """Nothing of it can move just now."""
        self._measure()
        self._active.discard(attempt)
        if not self._active:
            self._is_full = False
            self._other.take(self._now)
            if self._other.busy_s >= WINDOW_S:
                self._note(self._other, may_lower=False)

    def move(self, num_bytes: int) -> None:
        self._measure()
        self._window.num_bytes += num_bytes
        if self._full.busy_s >= WINDOW_S:
            self._note(self._full, may_lower=True)

    @property
    def bytes_s(self) -> float:
        """0 until the link was full once; afterwards above 0, also of a link that stands still."""
        self._measure()
        return self._bytes_s

    @property
    def _window(self) -> _Window:
        return self._full if self._is_full else self._now

    def _measure(self) -> None:
        now_s = self._clock.monotonic_s()
        if self._active:
            self._window.busy_s += now_s - self._since_s
        self._since_s = now_s
        if self._bytes_s and self._full.busy_s >= STILL_S:
            self._note(self._full, may_lower=True)

    def _note(self, window: _Window, *, may_lower: bool) -> None:
        """The window is over."""
        seen = max(window.num_bytes, 1) / window.busy_s
        if may_lower and not self._bytes_s:
            self._bytes_s = seen
        elif self._bytes_s and (may_lower or seen > self._bytes_s):
            kept = (1 - _WEIGHT) ** (window.busy_s / WINDOW_S)
            self._bytes_s = seen + kept * (self._bytes_s - seen)
        window.busy_s, window.num_bytes = 0.0, 0
