"""Listens to how requests fare: metrics and traces in a gateway, nobody in most tests."""

from typing import Protocol

from services.gateway.owner.generation import GenerateRequest
from services.gateway.owner.records.receipt import Receipt


class Observer(Protocol):
    """Called on the event loop; must not wait."""

    def first_token(self, receipt: Receipt) -> None:
        """Token 0 of a request arrived."""

    def token_gaps(self, gap_s: float, num_tokens: int) -> None:
        """`num_tokens` of one request arrived together, `gap_s` after the one before."""

    def gap_counts(self) -> list[int]:
        """Token gaps so far, by FINE_GAP_BOUNDS_S, the last of those beyond."""

    def ended(self, request: GenerateRequest, receipt: Receipt) -> None:
        """Step 9: the request has its one outcome."""
