"""Error answers in OpenAI's shape, with the request id in the header.

{"error": {"message": ..., "type": ..., "param": ..., "code": ...}}

Under /v1/messages they are in Anthropic's (`message_errors`).
"""

import json
import math
from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from services.gateway.http.json_lists import ListsResponse, split_at_lists
from services.gateway.http.message_errors import is_for_messages, message_error
from services.gateway.http.request_id import request_id
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
        after_s = _retry_after_s(error)
        message = error.message if after_s is None else f"{error.message}; try again in {after_s} s"
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
    status = error_status(error)
    after_s = _retry_after_s(error)
    if after_s is not None:
        headers["retry-after"] = str(after_s)
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    if status == 503:
        headers["connection"] = "close"  # another gateway may answer the next connection
    return _response(request, error_body(error), status, headers)


def _retry_after_s(error: BatonError) -> int | None:
    """None where no wait helps."""
    if not isinstance(error, OverloadedError):
        return 1 if error_status(error) == 503 else None
    after_s = error.retry_after_s
    return max(1, math.ceil(after_s)) if math.isfinite(after_s) else None


def http_exception_response(request: Request, error: HTTPException) -> Response:
    """Unknown path, wrong method and whatever else the framework refuses."""
    headers = dict(error.headers or {})
    message, code = "bad request", "bad_request"
    if error.status_code == 404:
        message, code = f"no such path; {_paths(request)}", "not_found"
    elif error.status_code == 405:
        headers["Allow"] = ", ".join(sorted(headers["Allow"].split(", ")))
        message, code = f"wrong method for this path; use {headers['Allow']}", "method_not_allowed"
    body = _body(message, error_type(error.status_code), None, code)
    return _response(request, body, error.status_code, headers)


def _paths(request: Request) -> str:
    """Where requests go instead: the paths of the port that was asked."""
    paths: dict[str, list[str]] = {"GET": [], "POST": []}
    for route in request.app.routes:
        if isinstance(route, Route) and not route.path.endswith("/"):
            for method in paths.keys() & (route.methods or ()):
                paths[method].append(route.path_format)
    return "; ".join(
        f"{method} goes to {', '.join(each)}" for method, each in paths.items() if each
    )


def internal_error_response(request: Request) -> Response:
    """A bug of ours; the log has the traceback, the client does not."""
    return _response(request, _body("internal error", "server_error", None, "internal_error"), 500)


def error_json(status: int, code: str, message: str, path: str, rid: str) -> bytes:
    """The body of an error that no application code saw."""
    body = _shaped(_body(message, error_type(status), None, code), status, path, rid)
    return json.dumps(body).encode()


def json_response(
    request: Request,
    payload: Any,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Any JSON answer of the gateway; carries x-request-id. A JsonList is made while it is sent."""
    parts, lists = split_at_lists(payload)
    every = {"x-request-id": request_id(request.scope), **(headers or {})}
    if lists:
        return ListsResponse(parts, lists, status, every)
    return Response(parts[0].encode(), status, every, media_type="application/json")


def _response(
    request: Request, body: dict[str, Any], status: int, headers: Mapping[str, str] | None = None
) -> Response:
    """An error in the shape of the path that was asked."""
    shaped = _shaped(body, status, request.scope["path"], request_id(request.scope))
    return json_response(request, shaped, status, headers)


def _shaped(body: dict[str, Any], status: int, path: str, rid: str) -> dict[str, Any]:
    return message_error(body, status, rid) if is_for_messages(path) else body


def _body(message: str, kind: str, param: str | None, code: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}
