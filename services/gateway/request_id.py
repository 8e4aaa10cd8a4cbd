"""The id of a request: made here, once, never taken from the client."""

import os
from collections.abc import MutableMapping
from typing import Any

_KEY = "baton.request_id"


def request_id(scope: MutableMapping[str, Any]) -> str:
    """The id of the HTTP request behind an ASGI scope; 32 hex digits."""
    rid: str | None = scope.get(_KEY)
    if rid is None:
        rid = scope[_KEY] = os.urandom(16).hex()
    return rid
