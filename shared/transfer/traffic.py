"""The account of a worker's hand-overs: what is left to move, whose turn it is, how fast it goes.

Whoever calls `offer` or `pull` says what to expect and when it is over; the transport says what
moves. Prefill expects what it offers until somebody pulls it; from then on the decode worker does,
because it alone knows what it has already, and what has really arrived.
"""

from dataclasses import dataclass
from typing import NamedTuple

from shared.clock import Clock
from shared.protocol import Attempt
from shared.transfer.rate_meter import RateMeter

MAX_SOURCES = 256
"""whose rates are remembered; the one longest unused is forgotten first"""


class Backlog(NamedTuple):
    """What is still to come from one source."""

    source: str
    num_bytes: int
    bytes_s: float
    """measured while the link was full; 0 until it was"""


@dataclass
class _Account:
    source: str
    left_bytes: int
    waits: bool = False
    busy_s: float = 0.0
    """in which a read was unanswered, up to the last one's begin"""
    since_s: float | None = None
    """that one's; None: all are answered"""


class Traffic:
    """All attempts that this worker hands over or takes over, in bytes."""

    def __init__(self, clock: Clock) -> None:
        self.moved_bytes = 0
        """since the start, for all attempts; never falls"""
        self.num_signs = 0
        """of life, of readers that hold or await what is offered here; never falls"""
        self._clock = clock
        self._accounts: dict[Attempt, _Account] = {}
        self._meters: dict[str, RateMeter] = {}

    def expect(self, attempt: Attempt, num_bytes: int, source: str = "") -> None:
        """`num_bytes` are to be moved for it. `source`: incarnation they come from."""
        self._accounts[attempt] = _Account(source, num_bytes)

    def wait(self, attempt: Attempt) -> None:
        """What may be read of it waits for its turn."""
        if attempt in self._accounts:
            self._accounts[attempt].waits = True

    def begin(self, attempt: Attempt) -> None:
        """Its turn has come."""
        if attempt in self._accounts:
            self._accounts[attempt].waits = False

    def activate(self, attempt: Attempt, num_bytes: int = 0) -> None:
        """A read of it, of so many bytes where that is known, is unanswered: from now on its bytes
        could move."""
        account = self._accounts.get(attempt)
        if account is not None:
            if account.since_s is None:
                account.since_s = self._clock.monotonic_s()
            self._meter(attempt).activate(attempt, num_bytes)

    def rest(self, attempt: Attempt) -> None:
        """No read of it is unanswered."""
        account = self._accounts.get(attempt)
        if account is not None:
            if account.since_s is not None:
                account.busy_s += self._clock.monotonic_s() - account.since_s
                account.since_s = None
            self._meter(attempt).rest(attempt)

    def move(self, attempt: Attempt, num_bytes: int) -> None:
        """These bytes have gone, or have come."""
        self.moved_bytes += num_bytes
        account = self._accounts.get(attempt)
        if account is not None:
            account.left_bytes = max(0, account.left_bytes - num_bytes)
            self._meter(attempt).move(num_bytes)

    def forget(self, attempt: Attempt) -> None:
        """It is over, whichever way, or somebody else's account. Safe to call twice."""
        self.rest(attempt)
        self._accounts.pop(attempt, None)

    def left(self, attempt: Attempt) -> int:
        """Bytes of it that have not moved; 0 if none are expected."""
        account = self._accounts.get(attempt)
        return account.left_bytes if account is not None else 0

    def busy_s(self, attempt: Attempt) -> float:
        """In which a read of it was unanswered; all are answered now."""
        account = self._accounts.get(attempt)
        return account.busy_s if account is not None else 0.0

    def waits(self, attempt: Attempt) -> bool:
        """It waits for its turn."""
        account = self._accounts.get(attempt)
        return account is not None and account.waits

    def backlogs(self) -> list[Backlog]:
        """What is still to come, by source; sources with nothing left are not named."""
        left: dict[str, int] = {}
        for account in self._accounts.values():
            if account.left_bytes:
                left[account.source] = left.get(account.source, 0) + account.left_bytes
        return [
            Backlog(source, num_bytes, self.bytes_s(source)) for source, num_bytes in left.items()
        ]

    def bytes_s(self, source: str) -> float:
        """Measured while its link was full; 0 until it was."""
        meter = self._meters.get(source)
        return meter.bytes_s if meter else 0.0

    def _meter(self, attempt: Attempt) -> RateMeter:
        source = self._accounts[attempt].source
        meter = self._meters.pop(source, None) or RateMeter(self._clock)
        self._meters[source] = meter
        if len(self._meters) > MAX_SOURCES:
            del self._meters[next(iter(self._meters))]
        return meter
