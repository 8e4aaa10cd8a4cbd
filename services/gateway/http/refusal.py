"""Answers to what is not a request: sent by the connection itself, no application sees it."""

from dataclasses import dataclass
from http import HTTPStatus

from services.gateway.http.errors import error_json
from services.gateway.http.limits import HttpLimits
from services.gateway.http.request_id import fresh_id

_FRAMING_WORDS = ("content-length", "transfer-encoding", "chunk")


@dataclass(frozen=True)
class HttpRefusal:
    """One error answer, after which the connection closes."""

    status: int
    code: str
    message: str
    header: str = ""
    """one more header line, if the status needs it"""

    def to_bytes(self, path: str = "") -> bytes:
        """`path`: what was asked for, as far as it was read; it says which shape errors have."""
        rid = fresh_id()
        body = error_json(self.status, self.code, self.message, path, rid)
        lines = [
            f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}",
            "content-type: application/json",
            f"content-length: {len(body)}",
            f"x-request-id: {rid}",
            "connection: close",
            *([self.header] if self.header else []),
        ]
        return "\r\n".join([*lines, "", ""]).encode() + body


def broken(reason: str) -> HttpRefusal:
    """Not HTTP/1.1, in the parser's words."""
    if any(word in reason.lower() for word in _FRAMING_WORDS):
        message = "the length of the body is not clear; send one content-length or valid chunks"
        return HttpRefusal(400, "bad_framing", message)
    message = "this is not an HTTP/1.1 request; check the URL's scheme (http, not https)"
    return HttpRefusal(400, "bad_request", message)


def slow_head(limits: HttpLimits) -> HttpRefusal:
    message = f"the headers did not arrive within {limits.header_s:g} s; send the request again"
    return HttpRefusal(408, "request_timeout", message)


def slow_body(limits: HttpLimits) -> HttpRefusal:
    message = f"the body did not arrive within {limits.body_s:g} s; send the request again"
    return HttpRefusal(408, "request_timeout", message)


def large_head(limits: HttpLimits) -> HttpRefusal:
    message = (
        f"the headers are larger than {limits.header_bytes} bytes "
        f"or more than {limits.num_headers}; send fewer or shorter ones"
    )
    return HttpRefusal(431, "header_too_large", message)


def large_body(limits: HttpLimits) -> HttpRefusal:
    message = f"the body is larger than {limits.body_bytes} bytes as sent; send a smaller one"
    return HttpRefusal(413, "request_too_large", message)


TOO_MANY_CONNECTIONS = HttpRefusal(
    503,
    "overloaded",
    "too many open connections; close idle ones or try again in 1 s",
    "retry-after: 1",
)
NO_CONNECT = HttpRefusal(
    405, "method_not_allowed", "this is no proxy; use GET or POST", "allow: GET, HEAD, POST"
)
NO_UPGRADE = HttpRefusal(
    400, "bad_request", "no other protocol is spoken here; leave out the upgrade header"
)
NO_HOST = HttpRefusal(400, "bad_request", "exactly one host header is needed")
OLD_VERSION = HttpRefusal(400, "bad_request", "HTTP/1.0 or HTTP/1.1 is needed")
