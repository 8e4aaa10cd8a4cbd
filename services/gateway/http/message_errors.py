"""Error answers in Anthropic's shape.

{"type": "error", "error": {"type": ..., "message": ...}, "request_id": ...}
"""

from collections.abc import Mapping
from typing import Any

MESSAGES_PATH = "/v1/messages"
TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""status -> type; the rest is invalid_request_error below 500 and api_error from there"""
TOO_LONG = "prompt is too long"
"""what agents look for before they shorten a conversation"""


def is_for_messages(path: str) -> bool:
    """Whether clients of a path expect this shape."""
    return path == MESSAGES_PATH or path.startswith(f"{MESSAGES_PATH}/")


def message_error(body: Mapping[str, Any], status: int, rid: str) -> dict[str, Any]:
    """The error that OpenAI's clients would get as `body`."""
    error = body["error"]
    kind = TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    message = error["message"]
    if error["code"] == "context_length_exceeded":
        message = f"{TOO_LONG}: {message}"
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": rid}
