"""Health, readiness, version, metrics, status and receipts."""

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from services.gateway.answer.messages.content import ID_PREFIX as MESSAGE_PREFIX
from services.gateway.answer.responses.response_object import ID_PREFIX as RESPONSE_PREFIX
from services.gateway.answer.shape import ChatShape, TextShape
from services.gateway.http.api_keys import asking_tenant, may_see
from services.gateway.http.errors import error_response, json_response
from services.gateway.http.request_id import request_id
from services.gateway.owner.records.receipts import MAX_RECEIPTS
from services.gateway.routes.live import LiveRoutes
from services.gateway.routes.owner_door import OwnerDoor
from services.gateway.routes.row_query import row_filter
from shared.errors import OverloadedError, RequestError

PREFIXES = (ChatShape.id_prefix, TextShape.id_prefix, MESSAGE_PREFIX, RESPONSE_PREFIX)
"""of answers' ids"""
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
RETRY_AFTER_S = 1.0
"""how soon it is worth asking again whether the gateway is ready"""


Elsewhere = Callable[[str], Awaitable[dict[str, Any] | None]]
"""the receipt of a request that another gateway has"""


async def nowhere(rid: str) -> None:
    """There is no other gateway."""


class StatusRoutes:
    """What operators and probes ask."""

    def __init__(
        self,
        door: OwnerDoor,
        metrics: Callable[[], bytes],
        version: str,
        trouble: Callable[[], str] = str,
        elsewhere: Elsewhere = nowhere,
    ) -> None:
        """`metrics` returns the Prometheus text; `trouble` which background loop fails, nothing
        when none does."""
        self._door = door
        self._metrics = metrics
        self.release = version
        self._trouble = trouble
        self._elsewhere = elsewhere
        self.live = LiveRoutes(door)

    async def health(self, request: Request) -> Response:
        """The process lives, its event loop turns and every background loop does."""
        trouble = self._trouble()
        if trouble:
            return json_response(request, {"status": "failing", "reason": trouble}, 503)
        return json_response(request, {"status": "ok"})

    async def ready(self, request: Request) -> Response:
        """Whether clients should come here, whether workers would serve a request now, how Redis
        is, and which workers are of no use."""
        store = self._door.store_state()
        if self._door.ready():
            notes = {"other_pools": list(self._door.other_pools()), "trouble": self._door.trouble()}
            said = {name: note for name, note in notes.items() if note}
            facts = {"status": "ready", "serves": self._door.serves(), "redis": store}
            return json_response(request, facts | said)
        text = f"not ready (redis: {store}): {self._door.trouble()}"
        error = OverloadedError(text, retry_after_s=RETRY_AFTER_S, status=503)
        return error_response(request, error)

    async def version(self, request: Request) -> Response:
        return json_response(request, {"version": self.release})

    async def metrics(self, request: Request) -> Response:
        headers = {"x-request-id": request_id(request.scope), "content-type": METRICS_TYPE}
        return Response(self._metrics(), headers=headers)

    async def status(self, request: Request) -> Response:
        return json_response(request, self._door.status())

    async def requests(self, request: Request) -> Response:
        """The last ones, in short."""
        tenant = asking_tenant(request.scope)
        wanted = row_filter(request.query_params.multi_items(), tenant)
        rows = self._door.last_requests(wanted)
        return json_response(request, {"requests": [row.as_dict() for row in rows]})

    async def receipt(self, request: Request) -> Response:
        """By request id, or by the id of an answer's body."""
        rid: str = request.path_params["rid"]
        for prefix in PREFIXES:
            rid = rid.removeprefix(prefix)
        receipt = self._door.receipt(rid) or await self._elsewhere(rid)
        if receipt is None or not may_see(request.scope, receipt["tenant"]):
            raise RequestError(
                f"no such request; each gateway keeps the last {MAX_RECEIPTS:,}",
                status=404,
                code="not_found",
                param="id",
            )
        return json_response(request, receipt)
