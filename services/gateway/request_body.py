"""Reading a request's body with a limit, and answering one that is over it."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from services.gateway.client_connection import ClientGoneError
from services.gateway.errors import error_body, json_response
from shared.errors import RequestError

DRAIN_BYTES = 8 * 2**20
"""read and dropped after a 413, so that a client that sends first and reads later gets it"""


async def read_body(request: Request, limit_bytes: int) -> bytes:
    """The whole body; RequestError 413 above the limit, before reading if the length is known."""
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > limit_bytes:
        raise too_large(limit_bytes)
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


def too_large(limit_bytes: int) -> RequestError:
    return RequestError(
        f"the body is larger than {limit_bytes} bytes", status=413, code="request_too_large"
    )


class TooLargeResponse(Response):
    """413 sent at once; the rest of the body is dropped before the connection closes."""

    def __init__(self, request: Request, error: RequestError) -> None:
        inner = json_response(request, error_body(error), 413, {"connection": "close"})
        super().__init__(inner.body, 413, dict(inner.headers))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 413, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        num_bytes = 0
        more = True
        while more and num_bytes < DRAIN_BYTES:
            message = await receive()
            num_bytes += len(message.get("body", b""))
            more = message.get("more_body", False)
        await send({"type": "http.response.body", "body": b"", "more_body": False})
