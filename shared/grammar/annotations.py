"""What a JSON Schema says that constrains nothing, and that no compiler needs to know."""

from collections.abc import Mapping
from typing import Any

FORMATS = frozenset(
    {
        *("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6"),
        *("uri", "uuid"),
    }
)
"""the formats that are enforced; any other, such as password, is a note for readers"""
DIALECTS = "json-schema.org/"
"""in the names of the dialects that mean something to a compiler"""
VALUES = frozenset({"const", "default", "enum", "examples"})
"""keywords with plain values under them, not schemas"""
NAMED = frozenset({"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"})
"""keywords with an object from names to schemas"""


def without_annotations(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema without the formats and dialects that nobody enforces."""
    return {
        name: _named(value) if name in NAMED else value if name in VALUES else _inner(value)
        for name, value in schema.items()
        if not _is_annotation(name, value)
    }


def _named(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {name: _inner(item) for name, item in value.items()}


def _inner(value: Any) -> Any:
    if isinstance(value, dict):
        return without_annotations(value)
    return [_inner(item) for item in value] if isinstance(value, list) else value


def _is_annotation(name: str, value: Any) -> bool:
    if not isinstance(value, str):
        return False
    if name == "$schema":
        return DIALECTS not in value
    return name == "format" and value not in FORMATS
