"""Whether this process leads. Pure: it is told what was read and the time of its own clock.

    leader      renews each 2 s ... cut off |-- may write: 10 s --| does not lead
    server                          last renewal
    another     sees the lease ......... |------ sees no change: 15 s ------| takes it

No two machines' clocks are compared: the leader counts from before it sent its last renewal that
was answered, another from after it read what that renewal wrote. So the leader stops first, by the
difference of both limits, which is also what clocks may differ by in their rates. Whoever deletes
the lease by hand sets this aside until the leader's next look.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

DURATION_S = 15.0
"""a lease that nobody changes for this long may be taken"""
LEAD_S = 10.0
"""a leader that has not renewed for this long no longer leads"""
RENEW_S = 2.0
"""from one look at the lease to the next"""

Move = Literal["take", "renew", "wait"]


@dataclass(frozen=True)
class Lease:
    """The lease as it was read."""

    holder: str
    """empty: it was released, or there never was one"""
    version: str
    """another one with every write; empty: there is no lease"""
    duration_s: float = DURATION_S
    """a shorter one than ours is not believed"""
    num_transitions: int = 0
    """how often it was taken"""
    acquired: datetime | None = None
    """by the clock of whoever holds it; for people"""


ABSENT = Lease(holder="", version="")


class Leadership:
    """Of one process; no other that lives has its `identity`."""

    def __init__(self, identity: str) -> None:
        assert identity
        self.identity = identity
        self._version: str | None = None
        """of the lease seen last"""
        self._seen_s = 0.0
        """when it was seen for the first time"""
        self._renewed_s: float | None = None
        self._ended = False

    def see(self, lease: Lease, now_s: float) -> Move:
        """What to do about the lease. `now_s`: after it was read."""
        if self._ended:
            return "wait"
        if not lease.holder:
            return "take"
        if lease.holder == self.identity:
            return "renew"
        self._renewed_s = None
        if lease.version != self._version:
            self._version, self._seen_s = lease.version, now_s
        unchanged_s = now_s - self._seen_s
        return "take" if unchanged_s >= max(lease.duration_s, DURATION_S) else "wait"

    def renewed(self, sent_s: float) -> None:
        """The lease was written as ours. `sent_s`: before the write was sent."""
        self._renewed_s = sent_s

    def end(self) -> None:
        """This process leads never again."""
        self._ended = True

    def holds(self, now_s: float) -> bool:
        """Whether this process leads. Asked before every write; any thread may."""
        renewed_s = self._renewed_s
        return not self._ended and renewed_s is not None and now_s - renewed_s < LEAD_S
