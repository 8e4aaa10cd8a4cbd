"""A JSON body read strictly: what two parsers could understand differently is refused.

Refused beyond the grammar: anything but UTF-8, byte order marks, duplicate keys, NaN and
infinities (also by overflow), integers no field could hold, lone surrogates, and shapes that
only serve to exhaust us (depth, keys per object). Every refusal is a RequestError (400).
"""

import json
import math
import re
from typing import Any

from shared.errors import RequestError
from shared.fields.client_text import is_unicode, shown

MAX_DEPTH = 32
MAX_KEYS = 256
MAX_NUMBERED_KEYS = 1024
"""keys of an object all of whose keys are digits: a logit_bias, from token ids to numbers"""
SCHEMA_FIELDS = (
    *("guided_json", "output_config", "response_format", "structured_outputs"),
    *("text", "tools"),
)
"""fields that carry a JSON Schema"""
MAX_INTEGER_DIGITS = 40
"""beyond any field's limit, so a field reader still gets to name a merely too large value"""

_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)
"""a string (also an unterminated one, so that the scan stays linear), or one bracket"""
_LONG_NUMBER = re.compile(rf"[-0-9]{{{MAX_INTEGER_DIGITS + 1}}}")
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")


def load_object(body: bytes) -> dict[str, Any]:
    """The object in `body`."""
    text = _decode(body)
    _check_depth(text)
    try:
        value = (_WARY_DECODER if _LONG_NUMBER.search(text) else _DECODER).decode(text)
    except json.JSONDecodeError as error:
        raise _refusal(
            f"the body is not JSON: {error.msg} at character {error.pos}", "invalid_json"
        ) from None
    if not isinstance(value, dict):
        raise _refusal("the body must be a JSON object, { ... }", "invalid_body")
    if _SURROGATE_ESCAPE.search(body):
        check_unicode(value)
    return value


def load_arguments(text: str) -> Any:
    """JSON that a model wrote. Nobody else reads it, so keys may repeat, but it can be written as
    JSON again; RequestError or ValueError if not."""
    _check_depth(text)
    return json.loads(text, parse_float=_float, parse_constant=_constant)


def check_unicode(value: Any, path: str = "") -> None:
    """RequestError if a text in it has half of a surrogate pair alone; it names the place, below
    `path`."""
    if isinstance(value, str):
        if not is_unicode(value):
            raise _refusal(
                f"{path}: half of a surrogate pair; send both halves", "invalid_unicode", path
            )
    elif isinstance(value, list):
        for index, item in enumerate(value):
            check_unicode(item, f"{path}[{index}]")
    elif isinstance(value, dict):
        for key, item in value.items():
            below = f"{path}.{shown(key)}" if path else shown(key)
            if not is_unicode(key):
                raise _refusal(
                    f"{below}: half of a surrogate pair in a key", "invalid_unicode", below
                )
            check_unicode(item, below)


def _decode(body: bytes) -> str:
    if body.startswith(b"\xef\xbb\xbf") or b"\x00" in body[:4]:
        raise _refusal("the body must be UTF-8 without a byte order mark", "invalid_utf8")
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _refusal(f"the body is not UTF-8 at byte {error.start}", "invalid_utf8") from None
    if not text.strip(" \t\r\n"):
        raise _refusal("the body is empty; a JSON object is needed", "invalid_json")
    return text


def _check_depth(text: str) -> None:
    """Before parsing, because the parser recurses once per level."""
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return
    depth, field = 0, ""
    for match in _BRACKETS.finditer(text):
        found = match.group()
        if found in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise _too_deep(field)
        elif depth == 1 and found[0] == '"':
            field = found[1:-1]
        elif found in "]}":
            depth -= 1


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > MAX_KEYS:
        if not all(key.isdigit() for key, _ in pairs):
            raise _refusal(f"an object has more than {MAX_KEYS} keys", "too_many_fields")
        if len(pairs) > MAX_NUMBERED_KEYS:
            needed = f"logit_bias: must have at most {MAX_NUMBERED_KEYS} entries"
            raise _refusal(needed, "too_many_fields", "logit_bias")
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _refusal(
                    f"duplicate key {shown(key)!r}; give it once", "duplicate_key", shown(key)
                )
            seen.add(key)
    return made


def _integer(digits: str) -> int:
    if len(digits) > MAX_INTEGER_DIGITS:
        raise _refusal(f"an integer has more than {MAX_INTEGER_DIGITS} digits", "invalid_number")
    return int(digits)


def _float(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise _refusal("a number is too large; use one a double can hold", "invalid_number")
    return value


def _constant(name: str) -> Any:
    raise _refusal(
        f"{name} is not a JSON number; use a finite one or leave the field out", "invalid_number"
    )


def _too_deep(field: str) -> RequestError:
    """`field`: the field of the body it is in. In a schema, the schema is what is wrong."""
    message = f"more than {MAX_DEPTH} levels of nesting; send a flatter body"
    if field in SCHEMA_FIELDS:
        return _refusal(f"{field}: {message}", "invalid_schema", field)
    return _refusal(message, "json_too_deep")


def _refusal(message: str, code: str, param: str | None = None) -> RequestError:
    return RequestError(message, code=code, param=param)


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_float=_float, parse_constant=_constant)
_WARY_DECODER = json.JSONDecoder(
    object_pairs_hook=_object,
    parse_int=_integer,
    parse_float=_float,
    parse_constant=_constant,
)
"""calls back for every integer, which costs a prompt of token ids half of its reading"""
