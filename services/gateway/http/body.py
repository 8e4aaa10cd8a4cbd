"""Reading a request's body with a limit, and answering one that is over it."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from services.gateway.http.client_connection import ClientGoneError
from services.gateway.http.errors import error_body, json_response
from services.gateway.http.headers import check_body_headers, too_large
from services.gateway.http.protocol import end_unread
from shared.errors import RequestError


async def read_body(request: Request, limit_bytes: int) -> bytes:
    """The whole body; RequestError 413 above the limit, 415 if it is no plain JSON. Nothing is
    read if the headers tell."""
    check_body_headers(request.scope["headers"], limit_bytes)
    chunks: list[bytes] = []
    num_bytes = 0
    more = True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        chunk = message.get("body", b"")
        num_bytes += len(chunk)
        if num_bytes > limit_bytes:
            raise too_large(limit_bytes)
        chunks.append(chunk)
        more = message.get("more_body", False)
    return b"".join(chunks)


class TooLargeResponse(Response):
    """413 sent at once, whatever of the body is still to come."""

    def __init__(self, request: Request, error: RequestError) -> None:
        inner = json_response(request, error_body(error), 413, {"connection": "close"})
        super().__init__(inner.body, 413, dict(inner.headers))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 413, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        end_unread(scope)
