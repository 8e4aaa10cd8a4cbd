"""What the operator's page shows: the gateway now, asked for once or watched."""

import json
import time
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from services.gateway.http.request_id import request_id
from services.gateway.routes.owner_door import OwnerDoor
from services.gateway.routes.served import ServedModels
from services.gateway.routes.watch import Broadcast, WatchResponse, head_only

FRESH_S = 0.5
"""a body is told again for so long: many clients that poll cost as much as a few"""


class LiveRoutes:
    """GET /v1/baton/live and /v1/baton/watch, of the model that the query names, else of the
    first."""

    def __init__(self, models: ServedModels) -> None:
        self._models = models
        names = models.names if len(models.names) > 1 else ()
        self._bodies = {served.model.name: LiveBody(served.door, names) for served in models}

    async def live(self, request: Request) -> Response:
        headers = {"x-request-id": request_id(request.scope), "cache-control": "no-store"}
        body = self._body(request).latest()
        return Response(body, headers=headers, media_type="application/json")

    async def watch(self, request: Request) -> Response:
        """The same, at once and then once a second."""
        if request.method == "HEAD":
            return head_only(request)
        body = self._body(request)
        first = body.latest()
        body.broadcast.join()
        return WatchResponse(first, body.broadcast)

    def _body(self, request: Request) -> "LiveBody":
        return self._bodies[self._models.of_query(request).model.name]


class LiveBody:
    """Of one model, made once for all that ask within a moment."""

    def __init__(self, door: OwnerDoor, names: Sequence[str]) -> None:
        """`names`: of all models, where there are several."""
        self._door = door
        self._more = {"models": list(names)} if names else {}
        self.broadcast = Broadcast(self._next)
        self._body = b""
        self._made_s = float("-inf")

    def latest(self) -> bytes:
        return self._body if time.monotonic() - self._made_s < FRESH_S else self._fresh()

    def _next(self) -> bytes | None:
        """None once the gateway stops: it waits for open answers."""
        return None if self._door.draining else self._fresh()

    def _fresh(self) -> bytes:
        body = self._door.live() | self._more
        self._body = json.dumps(body, separators=(",", ":")).encode()
        self._made_s = time.monotonic()
        return self._body
