"""/v1/responses: a body in the shape of OpenAI's responses, read as the chat that it means.

Nothing is stored: each request has the whole conversation as its input.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from services.gateway.prompt.field_tables import IGNORED, READERS, SHARED_READERS, FieldTable
from services.gateway.prompt.request_fields import (
    ClientNames,
    ParsedRequest,
    parsed_request,
    read_fields,
)
from services.gateway.prompt.response_format import SCHEMA_KEYS, named_schema
from services.gateway.prompt.shapes.response_items import read_input
from services.gateway.prompt.shapes.response_tools import (
    read_response_tool_choice,
    read_response_tools,
)
from services.gateway.prompt.shapes.turns import Turns
from shared.errors import RequestError
from shared.fields.client_text import shown
from shared.fields.readers import Reader, flag, integer, invalid, text
from shared.grammar import source
from shared.text.sampling_fields import MAX_TOKENS
from shared.text.template_values import read_effort

GRAMMAR = "text.format"
EFFORT = "reasoning.effort"
MAX_ECHOED_CHARS = 512 * 1024
"""of JSON of what an answer repeats, without the instructions, which the context limits"""
SEND_ALL = "nothing is stored here; send the whole conversation as input"


@dataclass(frozen=True)
class Reasoning:
    """`reasoning`."""

    effort: str | None
    ignored: tuple[str, ...]
    """its members without effect"""


def read_previous(value: Any, param: str) -> None:
    """Refused: there is no earlier response to go on from."""
    raise RequestError(f"{param}: {SEND_ALL}", code="unsupported_parameter", param=param)


def read_store(value: Any, param: str) -> bool:
    if flag(value, param):
        raise RequestError(
            f"{param}: {SEND_ALL}, and leave store out or give false",
            code="unsupported_parameter",
            param=param,
        )
    return False


def read_reasoning(value: Any, param: str) -> Reasoning:
    """{"effort"}; summaries are not made, reasoning is shown as it is."""
    if type(value) is not dict:
        raise invalid(param, "an object")
    effort = value.get("effort")
    others = [name for name, item in value.items() if name != "effort" and item is not None]
    return Reasoning(
        None if effort is None else read_effort(effort, EFFORT),
        tuple(f"{param}.{shown(name)}" for name in others),
    )


def read_text_config(value: Any, param: str) -> str:
    """The grammar that {"format", "verbosity"} asks for; verbosity binds nobody."""
    if type(value) is not dict:
        raise invalid(param, "an object")
    for name in value:
        if name not in ("format", "verbosity"):
            where = f"{param}.{shown(name)}"
            raise RequestError(f"{where}: not supported", code="unsupported_parameter", param=where)
    form = value.get("format")
    return "" if form is None else _grammar(form)


RESPONSES_READERS: dict[str, Reader] = {
    **{name: SHARED_READERS[name] for name in ("model", "temperature", "top_p", "stream", "user")},
    "input": read_input,
    "instructions": text,
    "max_output_tokens": integer(1, MAX_TOKENS),
    "parallel_tool_calls": flag,
    "previous_response_id": read_previous,
    "reasoning": read_reasoning,
    "store": read_store,
    "text": read_text_config,
    "tool_choice": read_response_tool_choice,
    "tools": read_response_tools,
}
RESPONSES_TABLE = FieldTable(
    readers=RESPONSES_READERS,
    required=("input", "model"),
    neutral={
        "background": (False,),
        "context_management": ([],),
        "conversation": (),
        "include": ([], ["reasoning.encrypted_content"]),
        "max_tool_calls": (),
        "moderation": (),
        "prompt": (),
        "service_tier": ("auto", "default"),
        "stream_options": ({}, {"include_obfuscation": False}),
        "top_logprobs": (0,),
        "truncation": ("disabled",),
    },
    ignored={name: kind for name, kind in IGNORED.items() if name not in ("verbosity",)},
    elsewhere=frozenset(READERS["chat"])
    - RESPONSES_READERS.keys()
    - {"stream_options", "top_logprobs"},
)
ECHOED: dict[str, Any] = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "reasoning": {"effort": None, "summary": None},
    "store": False,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}
"""fields that the answer repeats, with the values that they have when they are left out"""


def parse_responses(body: Mapping[str, Any], *, refuse_unknown: bool) -> ParsedRequest:
    """The request in a body of /v1/responses; RequestError names every bad field."""
    given, ignored = read_fields(body, RESPONSES_TABLE, refuse_unknown)
    said: Turns = given["input"]
    turns = said.after_system(given.get("instructions", ""), "instructions")
    fields = {name: given[name] for name in _SAME if name in given}
    fields |= {"messages": turns.messages, GRAMMAR: given.get("text", "")}
    if "max_output_tokens" in given:
        fields["max_tokens"] = given["max_output_tokens"]
    if "reasoning" in given:
        reasoning: Reasoning = given["reasoning"]
        fields["reasoning_effort"] = reasoning.effort
        ignored += reasoning.ignored
    names = ClientNames(
        messages="input",
        max_tokens="max_output_tokens",
        grammar=GRAMMAR,
        effort=EFFORT,
        places=turns.places,
    )
    return replace(parsed_request(fields, "chat", names, ignored), echo=_echo(body))


def _echo(body: Mapping[str, Any]) -> str:
    """A stream repeats it three times, so it has a limit. RequestError names the longest field."""
    echo = {
        name: json.dumps(value if body.get(name) is None else body[name], separators=(",", ":"))
        for name, value in ECHOED.items()
    }
    sizes = {name: len(text) for name, text in echo.items() if name != "instructions"}
    if sum(sizes.values()) > MAX_ECHOED_CHARS:
        longest = max(sizes, key=sizes.__getitem__)
        raise RequestError(
            f"{longest}: too long; the fields that an answer repeats may have "
            f"{MAX_ECHOED_CHARS} characters of JSON together",
            code="too_many_fields",
            param=longest,
        )
    return "{" + ",".join(f'"{name}":{text}' for name, text in echo.items()) + "}"


def _grammar(form: Any) -> str:
    kind = form.get("type") if type(form) is dict else None
    if kind not in ("text", "json_object", "json_schema"):
        raise invalid(GRAMMAR, "an object with a type: text, json_object or json_schema")
    known = SCHEMA_KEYS if kind == "json_schema" else ()
    for name in form:
        if name != "type" and name not in known:
            where = f"{GRAMMAR}.{shown(name)}"
            raise RequestError(f"{where}: not supported", code="unsupported_parameter", param=where)
    if kind == "json_schema":
        return named_schema(form, GRAMMAR)
    return source.json_object() if kind == "json_object" else ""


_SAME = ("model", "temperature", "top_p", "stream", "tools", "tool_choice", "parallel_tool_calls")
"""fields that a chat has under the same name"""
