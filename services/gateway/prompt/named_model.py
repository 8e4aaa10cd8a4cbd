"""Which of several models a body names, before anybody reads the body.

A JSON reader takes tens of milliseconds for a body of megabytes, in which the event loop stands
still. A search finds the field in a tenth of that; only where it leaves a doubt is the body parsed.
Whoever reads the body checks the name again.
"""

import json
import re

_MODEL = re.compile(rb'"model"\s*:\s*("(?:[^"\\]|\\.)*")')
"""the field and its value; inside a text the quotes of the name are escaped"""


def named_model(body: bytes) -> str | None:
    """What the body's `model` is; None where it has none that can be read."""
    named = {_decoded(found[1]) for found in _MODEL.finditer(body)}
    if len(named) > 1:
        return _parsed(body)
    return named.pop() if named else None


def _decoded(value: bytes) -> str | None:
    try:
        name: str = json.loads(value)
    except ValueError:
        return None
    return name


def _parsed(body: bytes) -> str | None:
    """Of a body with more fields of that name, in what it nests."""
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        return None
    name = fields.get("model") if isinstance(fields, dict) else None
    return name if isinstance(name, str) else None
