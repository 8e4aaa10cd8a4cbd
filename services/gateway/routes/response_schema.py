"""What /v1/responses takes, field by field, for the API's description."""

from typing import Any

from shared.text.sampling_fields import MAX_TOKENS

_OBJECT: dict[str, Any] = {"type": "object"}
_OBJECTS: dict[str, Any] = {"type": "array", "items": _OBJECT}
RESPONSE_FIELDS: dict[str, dict[str, Any]] = {
    "input": {"anyOf": [{"type": "string", "minLength": 1}, {**_OBJECTS, "minItems": 1}]},
    "instructions": {"type": "string"},
    "max_output_tokens": {"type": "integer", "minimum": 1, "maximum": MAX_TOKENS},
    "previous_response_id": {"type": "null"},
    "reasoning": _OBJECT,
    "store": {"enum": [False]},
    "text": _OBJECT,
}
"""those that chats have too and that look the same are not here"""
