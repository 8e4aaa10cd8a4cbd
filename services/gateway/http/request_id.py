"""The id of a request: made here, once, never taken from the client."""

import os
from collections.abc import MutableMapping
from typing import Any

_KEY = "baton.request_id"
_ID_BYTES = 16


def request_id(scope: MutableMapping[str, Any]) -> str:
    """The id of the HTTP request behind an ASGI scope; 32 hex digits."""
    rid: str | None = scope.get(_KEY)
    if rid is None:
        rid = scope[_KEY] = fresh_id()
    return rid


def fresh_id() -> str:
    """32 hex digits nobody can guess; also for a choice of a group, which has an id of its own."""
    return os.urandom(_ID_BYTES).hex()
