"""Reads `response_format` and turns it into a grammar."""

import re
from collections.abc import Mapping
from typing import Any

from shared.errors import RequestError
from shared.fields.client_text import shown
from shared.fields.readers import invalid
from shared.grammar import source

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_KEYS = {
    "text": ("type",),
    "json_object": ("type",),
    "json_schema": ("type", "json_schema"),
}
SCHEMA_KEYS = ("name", "schema", "strict", "description")


def response_format(value: Any, param: str) -> str:
    """The grammar of the answer; empty where any text will do.

    `strict` changes nothing: an answer always matches its schema."""
    if type(value) is not dict:
        raise invalid(param, "an object with a type")
    kind = value.get("type")
    if type(kind) is not str:
        raise invalid(f"{param}.type", "text, json_object or json_schema")
    if kind not in _KEYS:
        raise _unsupported(f"{param}.type {shown(kind)!r}", param)
    _check_keys(value, _KEYS[kind], param)
    if kind == "text":
        return ""
    if kind == "json_object":
        return source.json_object()
    return _json_schema(value.get("json_schema"), param)


def _json_schema(value: Any, param: str) -> str:
    name = f"{param}.json_schema"
    if type(value) is not dict:
        raise invalid(name, "an object with name and schema")
    _check_keys(value, SCHEMA_KEYS, param)
    return named_schema(value, name)


def named_schema(value: Mapping[str, Any], param: str) -> str:
    """The grammar of {"name", "schema", "strict", "description"}."""
    given = value.get("name")
    if type(given) is not str or not _NAME.fullmatch(given):
        raise invalid(f"{param}.name", "1 to 64 letters, digits, _ or -")
    if type(value.get("strict")) not in (bool, type(None)):
        raise invalid(f"{param}.strict", "true or false")
    if type(value.get("description")) not in (str, type(None)):
        raise invalid(f"{param}.description", "a string")
    schema = value.get("schema")
    if type(schema) is not dict:
        raise invalid(f"{param}.schema", "a JSON Schema object")
    return source.json_schema(schema)


def _check_keys(value: Mapping[str, Any], known: tuple[str, ...], param: str) -> None:
    for key in value:
        if key not in known:
            raise _unsupported(f"{param}: {shown(key)!r}", param)


def _unsupported(what: str, param: str) -> RequestError:
    return RequestError(f"{what} is not supported", code="unsupported_parameter", param=param)
