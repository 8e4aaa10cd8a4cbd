"""The headers of an answer that is server-sent events."""

from starlette.types import Scope

from services.gateway.http.request_id import request_id


def event_headers(scope: Scope) -> list[tuple[bytes, bytes]]:
    """Of a stream that proxies should not hold back."""
    return [
        (b"content-type", b"text/event-stream; charset=utf-8"),
        (b"cache-control", b"no-cache"),
        (b"x-accel-buffering", b"no"),
        (b"x-request-id", request_id(scope).encode()),
    ]
