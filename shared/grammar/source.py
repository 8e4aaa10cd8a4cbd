"""Writes grammars: Lark text in llguidance's dialect, where `%json {...}` is a JSON Schema.

Text is all that travels with a request; who checks it and who follows it compile it themselves.
"""

import json
from collections.abc import Mapping
from typing import Any

MAX_GRAMMAR_BYTES = 64 * 1024
LAYOUT = r"(\x20|\x0A\x20{0,16})?"
"""what may stand between two parts of a JSON text: nothing, a space, or a new line indented by up
to 16. Bounded, so that no model fills its answer with blanks."""

Schema = Mapping[str, Any] | bool


def json_object() -> str:
    """A grammar whose outputs are the JSON objects."""
    return json_schema({"type": "object"})


def json_schema(schema: Schema) -> str:
    """A grammar whose outputs are the JSON texts of the values that are valid against `schema`."""
    return f"start: {json_term(schema)}"


def json_term(schema: Schema) -> str:
    """The same as a term, for a place in a larger rule."""
    if isinstance(schema, bool):
        schema = {} if schema else {"enum": []}
    return f"%json {json.dumps({**schema, 'x-guidance': {'whitespace_pattern': LAYOUT}})}"


def literal(text: str) -> str:
    """A term that is exactly this text."""
    return json.dumps(text, ensure_ascii=False)
