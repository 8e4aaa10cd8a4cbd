"""Writes grammars: Lark text in llguidance's dialect, where `%json {...}` is a JSON Schema.

Text is all that travels with a request; its checker and its follower each compile it.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from shared.grammar.annotations import without_annotations

MAX_GRAMMAR_BYTES = 64 * 1024
LAYOUT = r"(\x20|\x0A\x20{0,16})?"
"""what may stand between two parts of a JSON text: nothing, a space, or a new line indented by up
to 16. Bounded, so that no model fills its answer with blanks."""

_NEEDS_ESCAPE = re.compile(r"\\.|[/\n\r]", re.DOTALL)
_ESCAPES = {"/": r"\/", "\n": r"\n", "\r": r"\r"}
_ESCAPED_END = re.compile(r"(?<!\\)\\(?:\\\\)*\$$")
"""a last dollar that is a dollar"""

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
    schema = without_annotations(schema)
    return f"%json {json.dumps({**schema, 'x-guidance': {'whitespace_pattern': LAYOUT}})}"


def regex(pattern: str) -> str:
    """A grammar whose outputs match the pattern as a whole."""
    if pattern.startswith("^"):
        pattern = pattern[1:]
    if pattern.endswith("$") and not _ESCAPED_END.search(pattern):
        pattern = pattern[:-1]
    return f"start: /{_NEEDS_ESCAPE.sub(_escaped, pattern)}/"


def choice(texts: Sequence[str]) -> str:
    """A grammar whose outputs are these texts."""
    return f"start: {' | '.join(map(literal, texts))}"


def lark(text: str) -> str:
    """A grammar of one rule whose outputs are those of a grammar in Lark."""
    return f"start: %lark {{\n{text}\n}}"


def literal(text: str) -> str:
    """A term that is exactly this text."""
    return json.dumps(text, ensure_ascii=False)


def _escaped(found: re.Match[str]) -> str:
    return _ESCAPES.get(found[0], found[0])
