"""What /v1/messages takes, field by field, for the API's description."""

from typing import Any

from shared.fields.readers import MAX_STOP_CHARS, MAX_STOPS
from shared.text.sampling_fields import MAX_TOKENS

_OBJECT: dict[str, Any] = {"type": "object"}
_OBJECTS: dict[str, Any] = {"type": "array", "items": _OBJECT}
_STOP: dict[str, Any] = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_CHARS}
MESSAGE_FIELDS: dict[str, dict[str, Any]] = {
    "max_tokens": {"type": "integer", "minimum": 1, "maximum": MAX_TOKENS},
    "messages": {**_OBJECTS, "minItems": 1},
    "output_config": _OBJECT,
    "stop_sequences": {"type": "array", "items": _STOP, "maxItems": MAX_STOPS},
    "system": {"anyOf": [{"type": "string"}, {**_OBJECTS, "minItems": 1}]},
    "thinking": {**_OBJECT, "required": ["type"]},
    "tool_choice": {**_OBJECT, "required": ["type"]},
    "tools": _OBJECTS,
    "top_k": {"type": "integer", "minimum": 0, "maximum": MAX_TOKENS},
}
"""those that chats have too and that are read the same way are not here"""
