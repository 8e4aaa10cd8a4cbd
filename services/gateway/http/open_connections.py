"""Which connections may stay open: at the cap the one that has been idle longest gives way.

A connection is idle while it waits for the head of a request: before the first, between two, or in
the middle of a head. If none is idle, a few places remain for probes, so that whoever watches this
process learns that it lives although its clients keep it busy.
"""

from typing import Literal, Protocol

from services.gateway.http.limits import HttpLimits

PROBE_PATHS = (b"/health", b"/ready", b"/metrics")
Purpose = Literal["any", "probes"]
"""what a connection may ask for"""


class IdleConnection(Protocol):
    """A connection as seen from here."""

    purpose: Purpose

    def give_way(self) -> None:
        """Close now."""


class OpenConnections:
    """The client connections of one listener."""

    def __init__(self, limits: HttpLimits) -> None:
        self.limits = limits
        self._idle: dict[IdleConnection, None] = {}
        """the one that has been idle for longest first"""

    def admit(self, num_open: int) -> Purpose | None:
        """What the last of `num_open` connections may ask for; None: it is one too many."""
        if num_open <= self.limits.num_connections:
            return "any"
        longest = next(iter(self._idle), None)
        if longest is not None:
            del self._idle[longest]
            longest.give_way()
            return longest.purpose
        most = self.limits.num_connections + self.limits.num_probe_connections
        return "probes" if num_open <= most else None

    def note_idle(self, connection: IdleConnection) -> None:
        """From now on it waits for a head."""
        self._idle.pop(connection, None)
        self._idle[connection] = None

    def note_busy(self, connection: IdleConnection) -> None:
        """It has a request, or is lost."""
        self._idle.pop(connection, None)
