"""Listens to how requests fare: metrics and traces in a gateway, nobody in most tests."""

from typing import Protocol

from services.gateway.owner.generation import GenerateRequest
from services.gateway.owner.records.receipt import Receipt
from shared.telemetry.attainment import Attainment


class Observer(Protocol):
    """Called on the event loop; must not wait."""

    def first_token(self, ttft_s: float) -> None:
        """A client may have its request's first token, so long after it asked."""

    def token_gaps(self, gap_s: float, num_tokens: int) -> None:
        """`num_tokens` of one request arrived together, `gap_s` after the one before."""

    @property
    def attainment(self) -> Attainment:
        """How often users' objectives were kept so far, and all token gaps."""

    def ended(self, request: GenerateRequest, receipt: Receipt) -> None:
        """Step 9: the request has its one outcome."""
