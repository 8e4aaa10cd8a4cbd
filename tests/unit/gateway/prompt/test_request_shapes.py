"""The field tables of the other APIs' shapes: nothing in two of them, null is absent, every neutral
value neutral, and every field that a client may send as null may be."""

import typing
from collections.abc import Mapping
from typing import Any

import pytest
import typing_extensions
from openai.types.responses.response_create_params import ResponseCreateParamsBase

from services.gateway.prompt.field_tables import FieldTable
from services.gateway.prompt.request_fields import ParsedRequest
from services.gateway.prompt.shapes.messages import MESSAGES_TABLE, parse_messages
from services.gateway.prompt.shapes.parsers import PARSERS, Api
from services.gateway.prompt.shapes.responses import ECHOED, MAX_ECHOED_CHARS, RESPONSES_TABLE
from shared.errors import RequestError
from tests.support.cases.http_bodies import message_body, response_body

SHAPES: dict[Api, tuple[FieldTable, dict[str, Any]]] = {
    "messages": (MESSAGES_TABLE, message_body()),
    "responses": (RESPONSES_TABLE, response_body()),
}
NEUTRAL = [
    (api, name, value)
    for api, (table, _) in SHAPES.items()
    for name, values in table.neutral.items()
    for value in (*values, None)
]


def parsed(api: Api, body: Mapping[str, Any]) -> ParsedRequest:
    """But for the seed, which is drawn."""
    request = PARSERS[api](body, refuse_unknown=True)
    return ParsedRequest(**{**vars(request), "seed": 0})


@pytest.mark.parametrize("api", SHAPES)
def test_the_tables_do_not_overlap(api: Api) -> None:
    table, _ = SHAPES[api]
    names = [*table.readers, *table.neutral, *table.ignored, *table.elsewhere]
    assert len(set(names)) == len(names)
    assert set(table.required) <= table.readers.keys()


@pytest.mark.parametrize(("api", "name", "value"), NEUTRAL)
def test_neutral_values_change_nothing(api: Api, name: str, value: Any) -> None:
    _, body = SHAPES[api]
    assert parsed(api, {**body, name: value}) == parsed(api, body)


@pytest.mark.parametrize("api", SHAPES)
def test_any_other_value_is_refused_by_name(api: Api) -> None:
    table, body = SHAPES[api]
    for name in (*table.neutral, *table.elsewhere, "nobody_knows"):
        with pytest.raises(RequestError) as caught:
            parsed(api, {**body, name: "surely not"})
        assert (caught.value.code, caught.value.param) == ("unsupported_parameter", name)


@pytest.mark.parametrize("api", SHAPES)
def test_null_means_absent(api: Api) -> None:
    table, body = SHAPES[api]
    names = (table.readers.keys() | table.elsewhere) - set(table.required)
    assert parsed(api, {**body, **dict.fromkeys(names)}) == parsed(api, body)


def test_every_field_that_openai_lets_be_null_may_be_null() -> None:
    """By the types of OpenAI's own client."""
    hints = typing_extensions.get_type_hints(ResponseCreateParamsBase)
    nullable = [name for name, hint in hints.items() if type(None) in typing.get_args(hint)]
    assert len(nullable) > 12
    _, body = SHAPES["responses"]
    assert parsed("responses", {**body, **dict.fromkeys(nullable)}) == parsed("responses", body)


def test_what_is_repeated_is_what_is_read() -> None:
    table, _ = SHAPES["responses"]
    assert all(name in table.readers or table.knows(name) for name in ECHOED)


@pytest.mark.parametrize("name", ["metadata", "reasoning", "user", "text"])
def test_what_is_repeated_is_not_long(name: str) -> None:
    """A stream says it three times. Instructions have the context as their limit."""
    long = "a" * MAX_ECHOED_CHARS
    value = {"user": long, "text": {"verbosity": long}}.get(name, {"summary": long})
    with pytest.raises(RequestError, match=f"^{name}: too long"):
        parsed("responses", response_body(instructions=2 * long, **{name: value}))
    parsed("responses", response_body(instructions=2 * long, user=long[:-1000]))


def test_thinking_and_effort_of_a_message() -> None:
    for kind, wanted in (("enabled", True), ("adaptive", True), ("disabled", False)):
        request = parse_messages(message_body(thinking={"type": kind}), refuse_unknown=True)
        assert (request.thinks, request.ignored) == (wanted, ())
    config = {"effort": "high"}
    request = parse_messages(message_body(output_config=config), refuse_unknown=True)
    assert (request.thinks, request.reasoning_effort) == (None, "high")


def test_members_of_thinking_without_effect_are_named() -> None:
    thinking = {"type": "enabled", "budget_tokens": 1024, "depth": 3, "display": None}
    request = parse_messages(message_body(thinking=thinking), refuse_unknown=True)
    assert request.ignored == ("thinking.budget_tokens", "thinking.depth")


@pytest.mark.parametrize(
    ("api", "choice", "name"),
    [
        ("messages", {"type": "auto", "name": "f"}, "name"),
        ("messages", {"type": "any", "name": "f"}, "name"),
        ("responses", {"type": "function", "name": "f", "function": {"name": "g"}}, "function"),
    ],
)
def test_a_choice_of_tools_that_says_two_things(api: Api, choice: Any, name: str) -> None:
    body = SHAPES[api][1]
    with pytest.raises(RequestError, match=rf"^tool_choice.{name}: not supported"):
        parsed(api, {**body, "tool_choice": choice})
