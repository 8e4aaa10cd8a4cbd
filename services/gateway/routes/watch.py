"""Server-sent events for those who watch: one body a second, made once for all of them."""

import asyncio
from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from services.gateway.http.client_connection import ClientConnection, ClientGoneError
from services.gateway.http.event_headers import event_headers
from services.gateway.http.protocol import drop_connection, mark_event_stream
from shared.errors import OverloadedError

INTERVAL_S = 1.0
MAX_WATCHERS = 8
SLOW_READER_S = 10.0
RETRY_AFTER_S = 5.0


class Broadcast:
    """Bodies for at most MAX_WATCHERS; nothing runs while nobody watches."""

    def __init__(self, body: Callable[[], bytes | None]) -> None:
        """`body()`: the next one; None: there will be no more."""
        self._body = body
        self._num_watchers = 0
        self._next: asyncio.Future[bytes | None] | None = None
        self._task: asyncio.Task[None] | None = None

    def join(self) -> None:
        """One more watcher; it must `leave`. OverloadedError where there are too many."""
        if self._num_watchers >= MAX_WATCHERS:
            text = f"{MAX_WATCHERS} watch already; poll /v1/baton/live"
            raise OverloadedError(text, retry_after_s=RETRY_AFTER_S, status=503)
        self._num_watchers += 1

    def leave(self) -> None:
        self._num_watchers -= 1

    async def next(self) -> bytes | None:
        """The next body; None at the end. Whoever is late misses those before."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
            self._task = asyncio.create_task(self._tell(self._next))
        return await asyncio.shield(self._next)

    async def _tell(self, told: asyncio.Future[bytes | None]) -> None:
        await asyncio.sleep(INTERVAL_S)
        self._next = None
        try:
            told.set_result(self._body())
        except Exception as error:  # noqa: BLE001 -- each watcher raises it
            told.set_exception(error)


class WatchResponse(Response):
    """The stream of one watcher; it has its place already."""

    def __init__(self, first: bytes, broadcast: Broadcast) -> None:
        super().__init__()
        self._first = first
        self._broadcast = broadcast

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            client = ClientConnection(receive, send, SLOW_READER_S)
            await client.run(self._run(scope, client))
        except ClientGoneError:
            await drop_connection(scope)
        finally:
            self._broadcast.leave()

    async def _run(self, scope: Scope, client: ClientConnection) -> None:
        mark_event_stream(scope)
        headers = event_headers(scope)
        await client.send({"type": "http.response.start", "status": 200, "headers": headers})
        body: bytes | None = self._first
        while body is not None:
            event = b"data: %b\n\n" % body
            await client.send({"type": "http.response.body", "body": event, "more_body": True})
            body = await self._broadcast.next()
        await client.send({"type": "http.response.body", "body": b"", "more_body": False})


def head_only(request: Request) -> Response:
    """What HEAD is told of a stream."""
    response = Response()
    response.raw_headers = event_headers(request.scope)
    return response
