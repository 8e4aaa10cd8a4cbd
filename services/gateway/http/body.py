"""Reading a request's body with a limit, and answering one that is over it."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from services.gateway.http.byte_budget import ByteShare
from services.gateway.http.client_connection import ClientGoneError
from services.gateway.http.headers import check_body_headers, too_large
from services.gateway.http.protocol import end_unread


async def read_body(request: Request, limit_bytes: int, share: ByteShare) -> bytes:
    """The whole body, counted in `share` as it comes.

    RequestError 413 above the limit, 415 if it is no plain JSON; OverloadedError if all bodies
    together are too large. Nothing is read if the headers tell."""
    check_body_headers(request.scope["headers"], limit_bytes)
    body = bytearray()
    more = True
    async with share.arriving():
        while more:
            message = await request.receive()
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            chunk = message.get("body", b"")
            if len(body) + len(chunk) > limit_bytes:
                raise too_large(limit_bytes)
            share.grow(len(chunk))
            body += chunk
            more = message.get("more_body", False)
    return bytes(body)


class UnreadResponse(Response):
    """An error sent at once, whatever of the body is still to come."""

    def __init__(self, inner: Response) -> None:
        super().__init__(inner.body, inner.status_code, {**inner.headers, "connection": "close"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code}
        await send({**start, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        end_unread(scope)
