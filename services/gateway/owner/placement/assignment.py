"""Where the current epoch of a request goes, and what the epochs before it have taught."""

import secrets

from services.gateway.owner.placement.avoidance import Key
from services.gateway.owner.placement.router import Route

_TICKET_BYTES = 16


class Assignment:
    """Of one request; renewed with each epoch."""

    def __init__(self, prefer_incarnation: str | None) -> None:
        self.prefer_incarnation = prefer_incarnation
        """incarnation that has computed the prompt before"""
        self.cause = "first"
        """why the epoch exists: first, or what ended the one before"""
        self.route: Route | None = None
        self.ticket = ""
        """lets decode pull this epoch's KV"""
        self.failed: frozenset[Key] = frozenset()
        """workers and pairs of workers that failed the request"""
        self.failed_again: frozenset[Key] = frozenset()
        self.full: frozenset[str] = frozenset()
        """workers that have refused the request for lack of KV blocks"""

    @property
    def estimate_s(self) -> float:
        """Forecast to the first token; 0 while it waits for a worker."""
        return self.route.estimate_s if self.route else 0.0

    def renew(self, cause: str, prefer_incarnation: str | None) -> None:
        """An epoch begins, which has no worker yet."""
        self.cause, self.prefer_incarnation, self.route = cause, prefer_incarnation, None

    def note_route(self, route: Route) -> None:
        self.route = route
        self.ticket = secrets.token_hex(_TICKET_BYTES)

    def note_failure(self, key: Key) -> None:
        self.failed_again |= self.failed & {key}
        self.failed |= {key}
