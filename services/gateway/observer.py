"""Who is told how requests fare: metrics and traces in a gateway, nobody in most tests."""

from typing import Protocol

from services.gateway.generation import GenerateRequest
from services.gateway.receipts import Receipt


class Observer(Protocol):
    """Called on the event loop; must not wait."""

    def first_token(self, receipt: Receipt) -> None:
        """Token 0 of a request arrived."""

    def token_gap(self, gap_s: float) -> None:
        """Seconds between two frames with tokens of one request."""

    def ended(self, request: GenerateRequest, receipt: Receipt) -> None:
        """Step 9: the request has its one outcome."""


class Unobserved:
    """An Observer that keeps nothing."""

    def first_token(self, receipt: Receipt) -> None:
        pass

    def token_gap(self, gap_s: float) -> None:
        pass

    def ended(self, request: GenerateRequest, receipt: Receipt) -> None:
        pass
