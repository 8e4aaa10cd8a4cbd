"""Readers of what an output must match: each gives its grammar. RequestError names a bad one."""

from typing import Any

from shared.errors import GrammarError, MissingError, RequestError
from shared.fields.client_text import shown
from shared.fields.json_body import load_object
from shared.fields.readers import Reader, flag, invalid, unsupported
from shared.grammar import ebnf, source

MAX_CHOICES = 1024


def json_schema(value: Any, param: str) -> str:
    """A schema as an object, or as its text."""
    schema = _schema_of(value, param) if type(value) is str else value
    if type(schema) is not dict:
        raise invalid(param, "a JSON Schema object, or its text")
    return source.json_schema(schema)


def _schema_of(text: str, param: str) -> dict[str, Any]:
    try:
        return load_object(text.encode())
    except RequestError as error:
        said = error.message.replace("the body", "the text")
        raise RequestError(f"{shown(param)}: {said}", code=error.code, param=param) from None


def regex(value: Any, param: str) -> str:
    if type(value) is not str or not value:
        raise invalid(param, "a regular expression, a non-empty string")
    return source.regex(value)


def choice(value: Any, param: str) -> str:
    """One of these texts."""
    fits = type(value) is list and 1 <= len(value) <= MAX_CHOICES
    if not fits or not all(type(item) is str and item for item in value):
        raise invalid(param, f"a list of 1 to {MAX_CHOICES} non-empty strings")
    return source.choice(value)


def grammar(value: Any, param: str) -> str:
    """Lark with a rule `start`, or GBNF with a rule `root`."""
    if type(value) is not str or not value.strip():
        raise invalid(param, "a grammar, a non-empty string")
    try:
        return source.lark(ebnf.to_lark(value))
    except GrammarError as error:
        raise RequestError(f"{param}: {error}", code="invalid_schema", param=param) from None
    except MissingError:
        raise unsupported(param) from None


def json_object(value: Any, param: str) -> str:
    return source.json_object() if flag(value, param) else ""


OUTPUTS: dict[str, Reader] = {
    "json": json_schema,
    "regex": regex,
    "choice": choice,
    "grammar": grammar,
    "json_object": json_object,
}
