"""Grammars by the names other servers have for them: vLLM's `structured_outputs` and `guided_*`,
SGLang's `regex` and `ebnf`. Readers give the grammar that an answer must match."""

from typing import Any

from services.gateway.fields.client_text import shown
from services.gateway.fields.json_body import load_object
from services.gateway.fields.readers import Reader, flag, invalid, same, unsupported
from shared.errors import GrammarError, MissingError, RequestError
from shared.grammar import ebnf, source

MAX_CHOICES = 1024
NEUTRAL_OPTIONS: dict[str, tuple[Any, ...]] = {
    "disable_fallback": (False, True),
    "disable_any_whitespace": (False,),
    "disable_additional_properties": (False,),
}
"""options of structured_outputs -> values that change nothing; null never does"""


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


def structured_outputs(value: Any, param: str) -> str:
    """vLLM's object, with one of `OUTPUTS`."""
    if type(value) is not dict:
        raise invalid(param, f"an object with one of {', '.join(OUTPUTS)}")
    given = {name: item for name, item in value.items() if item is not None}
    for name, item in given.items():
        neutral = NEUTRAL_OPTIONS.get(name, ())
        if name not in OUTPUTS and not any(same(item, each) for each in neutral):
            raise unsupported(f"{param}.{shown(name)}", neutral)
    wanted = [name for name in OUTPUTS if name in given]
    if len(wanted) != 1:
        raise invalid(param, f"an object with exactly one of {', '.join(OUTPUTS)}")
    return str(OUTPUTS[wanted[0]](given[wanted[0]], f"{param}.{wanted[0]}"))


READERS: dict[str, Reader] = {
    "structured_outputs": structured_outputs,
    "guided_json": json_schema,
    "guided_regex": regex,
    "guided_choice": choice,
    "guided_grammar": grammar,
    "regex": regex,
    "ebnf": grammar,
}
