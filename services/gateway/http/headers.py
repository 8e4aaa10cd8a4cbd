"""What the headers of a request with a body must say, and what they may."""

import math
import re
from collections.abc import Iterable

from starlette.requests import Request

from shared.errors import RequestError
from shared.fields.client_text import shown
from shared.fields.readers import invalid

JSON = b"application/json"
TIMEOUT_HEADER = "x-baton-timeout-s"
NUMBER = re.compile(r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
"""as JSON has them, or nearly; Python's own reads more, such as 1_0"""


def check_body_headers(headers: Iterable[tuple[bytes, bytes]], limit_bytes: int) -> None:
    """RequestError 413 if the stated length is above the limit, 415 unless the body is plain
    JSON in UTF-8."""
    num_types = 0
    for name, value in headers:
        if name == b"content-type":
            num_types += 1
            if value != JSON:
                _check_type(value.decode("latin-1"))
        elif name == b"content-length":
            if int(value) > limit_bytes:
                raise too_large(limit_bytes)
        elif name == b"content-encoding" and value.strip().lower() not in (b"", b"identity"):
            raise RequestError(
                "content-encoding: compressed bodies are not read; send the JSON as it is",
                status=415,
                code="unsupported_encoding",
            )
    if num_types == 0:
        raise _unsupported_type("the header content-type is missing")


def too_large(limit_bytes: int) -> RequestError:
    return RequestError(
        f"the body is larger than {limit_bytes} bytes; send a smaller one",
        status=413,
        code="request_too_large",
    )


def timeout_s(request: Request, setting_s: float) -> float:
    """How long the request may take: what the client asks for, up to the gateway's own limit,
    which is none if the setting is 0."""
    limit_s = setting_s or math.inf
    given = request.headers.get(TIMEOUT_HEADER)
    if given is None:
        return limit_s
    wanted_s = float(given) if NUMBER.fullmatch(given) else math.nan
    if not 0 < wanted_s < math.inf:
        raise invalid(TIMEOUT_HEADER, "a number of seconds above 0, as a header")
    return min(wanted_s, limit_s)


def _check_type(value: str) -> None:
    kind, *parameters = (part.strip().lower() for part in value.split(";"))
    if kind != JSON.decode():
        raise _unsupported_type(f"content-type {shown(value)!r} is not understood")
    for parameter in parameters:
        name, _, charset = parameter.partition("=")
        if name.strip() == "charset" and charset.strip(' "') not in ("utf-8", "utf8"):
            raise _unsupported_type(f"charset {shown(charset)!r} is not understood")


def _unsupported_type(what: str) -> RequestError:
    return RequestError(
        f"{what}; send UTF-8 JSON with the header content-type: application/json",
        status=415,
        code="unsupported_media_type",
    )
