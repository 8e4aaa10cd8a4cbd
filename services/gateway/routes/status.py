"""Health, readiness, version, metrics, status and receipts."""

from collections.abc import Awaitable, Callable, Mapping
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
from services.gateway.routes.capacity import asked_of, capacity_body
from services.gateway.routes.live import LiveRoutes
from services.gateway.routes.price import priced, receipt_price
from services.gateway.routes.row_query import row_filter
from services.gateway.routes.served import Served, ServedModels
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
        models: ServedModels,
        metrics: Callable[[], bytes],
        version: str,
        trouble: Callable[[], str] = str,
        elsewhere: Elsewhere = nowhere,
    ) -> None:
        """`metrics` returns the Prometheus text; `trouble` which background loop fails, nothing
        when none does."""
        self._models = models
        self._metrics = metrics
        self.release = version
        self._trouble = trouble
        self._elsewhere = elsewhere
        self.live = LiveRoutes(models)

    async def health(self, request: Request) -> Response:
        """The process lives, its event loop turns and every background loop does."""
        trouble = self._trouble()
        if trouble:
            return json_response(request, {"status": "failing", "reason": trouble}, 503)
        return json_response(request, {"status": "ok"})

    async def ready(self, request: Request) -> Response:
        """Whether clients should come here, whether workers would serve a request now, how Redis
        is, and which workers are of no use; of each model, where there are several."""
        store = self._models.first.door.store_state()
        if not self._is_ready():
            troubles = {served.model.name: served.door.trouble() for served in self._models}
            text = f"not ready (redis: {store}): {_joined(troubles)}"
            error = OverloadedError(text, retry_after_s=RETRY_AFTER_S, status=503)
            return error_response(request, error)
        told = {served.model.name: _told(served) for served in self._models}
        only = told.popitem()[1] if len(told) == 1 else None
        more = only or {"serves": any(map(_serves, self._models)), "models": told}
        return json_response(request, {"status": "ready", "redis": store, **more})

    def _is_ready(self) -> bool:
        """One of several models is enough, if it is served; one that was is, while no other gateway
        may serve any."""
        doors = [served.door for served in self._models]
        ready = [door for door in doors if door.ready()]
        if any(door.serves() for door in ready):
            return True
        return bool(ready) and not any(door.may_serve_elsewhere() for door in doors)

    async def version(self, request: Request) -> Response:
        return json_response(request, {"version": self.release})

    async def metrics(self, request: Request) -> Response:
        headers = {"x-request-id": request_id(request.scope), "content-type": METRICS_TYPE}
        return Response(self._metrics(), headers=headers)

    async def status(self, request: Request) -> Response:
        """Of the model that the query names, else of the first."""
        names = self._models.names
        more = {"models": list(names)} if len(names) > 1 else {}
        return json_response(request, self._models.of_query(request).door.status() | more)

    async def capacity(self, request: Request) -> Response:
        """Of the model that the query names, else of the first."""
        query = [item for item in request.query_params.multi_items() if item[0] != "model"]
        asked = asked_of(query)
        status = self._models.of_query(request).door.status()
        return json_response(request, capacity_body(status, asked))

    async def requests(self, request: Request) -> Response:
        """The last ones in short, of the model that the query names or of all."""
        tenant, query = asking_tenant(request.scope), request.query_params
        marks = [(name, value) for name, value in query.multi_items() if name != "model"]
        wanted = row_filter(marks, tenant)
        models = [self._models.of_query(request)] if "model" in query else self._models
        rows = [
            (row, served.model.name)
            for served in models
            for row in served.door.last_requests(wanted)
        ]
        rows.sort(key=lambda row: row[0].received_ns, reverse=True)
        shown = [row.as_dict() | {"model": name} for row, name in rows[: wanted.limit]]
        return json_response(request, {"requests": shown})

    async def receipt(self, request: Request) -> Response:
        """By request id, or by the id of an answer's body; in USD too, at the price that the query
        names."""
        usd_per_gpu_hour = receipt_price(request.query_params.multi_items())
        rid: str = request.path_params["rid"]
        for prefix in PREFIXES:
            rid = rid.removeprefix(prefix)
        found = (served.door.receipt(rid) for served in self._models)
        receipt = next(filter(None, found), None) or await self._elsewhere(rid)
        if receipt is None or not may_see(request.scope, receipt["tenant"]):
            raise RequestError(
                f"no such request; each gateway keeps the last {MAX_RECEIPTS:,}",
                status=404,
                code="not_found",
                param="id",
            )
        if usd_per_gpu_hour is not None:
            receipt = priced(receipt, usd_per_gpu_hour)
        return json_response(request, receipt)


def _serves(served: Served) -> bool:
    return served.door.serves()


def _told(served: Served) -> dict[str, Any]:
    """What `/ready` tells of a model."""
    door = served.door
    notes = {"other_pools": list(door.other_pools()), "trouble": door.trouble()}
    return {"serves": door.serves()} | {name: note for name, note in notes.items() if note}


def _joined(troubles: Mapping[str, str]) -> str:
    if len(troubles) == 1:
        return next(iter(troubles.values()))
    return "; ".join(f"{name}: {trouble}" for name, trouble in troubles.items())
