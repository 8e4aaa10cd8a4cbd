"""Error answers in OpenAI's shape, with the request id in the header.

{"error": {"message": ..., "type": ..., "param": ..., "code": ...}}
"""

import json
import math
from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from services.gateway.request_id import request_id
from shared.errors import AttemptError, BatonError, OverloadedError, RequestError

TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    429: "rate_limit_error",
    504: "timeout_error",
}
"""status -> type; the rest is invalid_request_error below 500 and server_error from there"""


def error_type(status: int) -> str:
    return TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")


def error_body(error: BatonError) -> dict[str, Any]:
    """The `{"error": ...}` object of one of our errors; others become a bare server_error."""
    status = error_status(error)
    kind, param = error_type(status), None
    message, code = "internal error", "internal_error"
    if isinstance(error, RequestError):
        message, param = error.message, error.param
        code = error.code or "invalid_value"
        kind = kind if status in TYPES else error.kind
    elif isinstance(error, OverloadedError):
        message = error.message
        code = "rate_limit_exceeded" if status == 429 else "overloaded"
    elif isinstance(error, AttemptError):
        message, code = error.message, error.code
    return _body(message, kind, param, code)


def error_status(error: BatonError) -> int:
    if isinstance(error, RequestError | OverloadedError | AttemptError):
        return error.status
    return 500


def error_response(request: Request, error: BatonError) -> Response:
    """Status, body and headers of an error before the first byte of an answer."""
    headers: dict[str, str] = {}
    if isinstance(error, OverloadedError):
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s)))
        if error.status == 503:
            headers["connection"] = "close"
    return json_response(request, error_body(error), error_status(error), headers)


def http_exception_response(request: Request, error: HTTPException) -> Response:
    """Unknown path, wrong method and whatever else the framework refuses."""
    known = {404: ("no such path", "not_found"), 405: ("wrong method", "method_not_allowed")}
    message, code = known.get(error.status_code, ("bad request", "bad_request"))
    body = _body(message, error_type(error.status_code), None, code)
    return json_response(request, body, error.status_code, error.headers)


def internal_error_response(request: Request) -> Response:
    """A bug of ours; the log has the traceback, the client does not."""
    return json_response(
        request, _body("internal error", "server_error", None, "internal_error"), 500
    )


def json_response(
    request: Request,
    payload: Any,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Any JSON answer of the gateway; carries x-request-id."""
    body = json.dumps(payload, separators=(",", ":")).encode()
    every = {"x-request-id": request_id(request.scope), **(headers or {})}
    return Response(body, status, every, media_type="application/json")


def _body(message: str, kind: str, param: str | None, code: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}
