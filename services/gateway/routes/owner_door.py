"""What the HTTP layer asks of those who own the requests."""

from typing import Any, Protocol

from services.gateway.owner.generation import GenerateRequest, Generation
from services.gateway.owner.records.row import Row, RowFilter


class OwnerDoor(Protocol):
    """Accepts requests and knows how they fare."""

    def submit(self, request: GenerateRequest) -> Generation:
        """Own the request from now on; OverloadedError if there is no room."""

    async def close_record(self, rid: str) -> None:
        """No other choice of this HTTP request comes. Returns once its end is recorded, or late."""

    def ready(self) -> bool:
        """Whether clients should come here."""

    def serves(self) -> bool:
        """Whether workers would serve a request now."""

    def may_serve_elsewhere(self) -> bool:
        """Whether another gateway may have workers that are missing here."""

    def trouble(self) -> str:
        """Why not, and which registered workers are not in use; nothing when all is well."""

    def store_state(self) -> str:
        """How Redis is: ok, refuses writes, away."""

    def other_pools(self) -> tuple[str, ...]:
        """Pools of the model that have workers and are not served here."""

    def status(self) -> dict[str, Any]:
        """The `status --json` object."""

    def receipt(self, rid: str) -> dict[str, Any] | None:
        """What is known of one of the last requests, or of a group."""

    @property
    def draining(self) -> bool:
        """The gateway stops: whoever can should go elsewhere."""

    def live(self) -> dict[str, Any]:
        """The gateway and its workers, now and in the last minute."""

    def last_requests(self, wanted: RowFilter) -> list[Row]:
        """Those of the last requests that are asked for, the newest first."""

    async def final_receipt(self, rid: str) -> dict[str, Any] | None:
        """The same of one that has ended; may wait a moment for its last stages."""
