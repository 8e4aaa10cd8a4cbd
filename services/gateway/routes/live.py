"""What the operator's page shows: the gateway now, asked for once or watched."""

import json
import time

from starlette.requests import Request
from starlette.responses import Response

from services.gateway.http.request_id import request_id
from services.gateway.routes.owner_door import OwnerDoor
from services.gateway.routes.watch import Broadcast, WatchResponse, head_only

FRESH_S = 0.5
"""a body is told again for so long: many clients that poll cost as much as a few"""


class LiveRoutes:
    """GET /v1/baton/live and /v1/baton/watch."""

    def __init__(self, door: OwnerDoor) -> None:
        self._door = door
        self._broadcast = Broadcast(self._next_body)
        self._body = b""
        self._made_s = float("-inf")

    async def live(self, request: Request) -> Response:
        headers = {"x-request-id": request_id(request.scope), "cache-control": "no-store"}
        return Response(self._latest(), headers=headers, media_type="application/json")

    async def watch(self, request: Request) -> Response:
        """The same, at once and then once a second."""
        if request.method == "HEAD":
            return head_only(request)
        first = self._latest()
        self._broadcast.join()
        return WatchResponse(first, self._broadcast)

    def _next_body(self) -> bytes | None:
        """None once the gateway stops: it waits for open answers."""
        return None if self._door.draining else self._fresh()

    def _latest(self) -> bytes:
        return self._body if time.monotonic() - self._made_s < FRESH_S else self._fresh()

    def _fresh(self) -> bytes:
        self._body = json.dumps(self._door.live(), separators=(",", ":")).encode()
        self._made_s = time.monotonic()
        return self._body
