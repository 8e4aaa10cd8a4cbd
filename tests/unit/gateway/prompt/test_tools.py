"""Tools of a request: what is read, and the exact path of what is wrong."""

import json
from typing import Any

import pytest

from services.gateway.prompt.call_ids import MISTRAL_ID, call_id, with_template_ids
from services.gateway.prompt.request_fields import parse_request
from services.gateway.prompt.tools import MAX_TOOLS, ToolChoice
from shared.errors import RequestError
from shared.text.messages import read_messages
from tests.support.cases.http_bodies import chat_body, text_body
from tests.support.models.tool_models import CALL_MESSAGES, WEATHER

NAMED = {"type": "function", "function": {"name": "weather"}}


def tool(**function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", **function}}


def test_a_request_with_tools() -> None:
    fields = {"tools": [WEATHER, tool()], "tool_choice": NAMED, "parallel_tool_calls": False}
    use = parse_request(chat_body(**fields), "chat").tool_use
    assert [item.name for item in use.tools] == ["weather", "f"]
    assert use.choice == ToolChoice("required", "weather")
    assert [item.name for item in use.callable] == ["weather"]
    assert not use.parallel
    assert use.tools[0].shown == {
        "type": "function",
        "function": {
            key: WEATHER["function"][key] for key in ("name", "description", "parameters")
        },
    }
    assert use.tools[1].parameters == {"type": "object", "properties": {}}


@pytest.mark.parametrize("choice", ["none", "auto"])
@pytest.mark.parametrize("make", [chat_body, text_body])
def test_row_37_neutral_values(choice: str, make: Any) -> None:
    endpoint: Any = "chat" if make is chat_body else "text"
    body = make(tools=[], tool_choice=choice, parallel_tool_calls=True)
    assert not parse_request(body, endpoint).tool_use.offered


def test_choice_none_offers_nothing() -> None:
    use = parse_request(chat_body(tools=[WEATHER], tool_choice="none"), "chat").tool_use
    assert use.tools
    assert not use.offered
    assert not use.callable


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"tools": {}}, "tools"),
    ({"tools": [tool()] * (MAX_TOOLS + 1)}, "tools"),
    ({"tools": [tool(description="x" * 300_000)]}, "tools"),
    ({"tools": [5]}, "tools[0]"),
    ({"tools": [{}]}, "tools[0].type"),
    ({"tools": [{"type": "retrieval"}]}, "tools[0].type"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tools": [{**tool(), "x": 1}]}, "tools[0].x"),
    ({"tools": [tool(x=1)]}, "tools[0].function.x"),
    ({"tools": [tool(name="a b")]}, "tools[0].function.name"),
    ({"tools": [tool(name="a" * 65)]}, "tools[0].function.name"),
    ({"tools": [tool(name=None)]}, "tools[0].function.name"),
    ({"tools": [tool(), tool()]}, "tools[1].function.name"),
    ({"tools": [tool(description=5)]}, "tools[0].function.description"),
    ({"tools": [tool(parameters=[])]}, "tools[0].function.parameters"),
    ({"tools": [tool(parameters={"type": "string"})]}, "tools[0].function.parameters.type"),
    ({"tools": [tool(strict="yes")]}, "tools[0].function.strict"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": NAMED}, "tool_choice.function.name"),
    ({"tools": [tool()], "tool_choice": NAMED}, "tool_choice.function.name"),
    ({"tools": [tool()], "tool_choice": "any"}, "tool_choice"),
    ({"tools": [tool()], "tool_choice": {"type": "function"}}, "tool_choice.function"),
    ({"tools": [tool()], "tool_choice": {**NAMED, "x": 1}}, "tool_choice.x"),
    ({"parallel_tool_calls": 1}, "parallel_tool_calls"),
]


@pytest.mark.parametrize(("fields", "param"), WRONG)
def test_wrong_fields_are_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_request(chat_body(**fields), "chat")
    assert caught.value.param == param
    assert caught.value.status == 400


def test_completions_take_no_tools() -> None:
    with pytest.raises(RequestError) as caught:
        parse_request(text_body(tools=[tool()]), "text")
    assert caught.value.param == "tools"
    assert caught.value.code == "unsupported_parameter"


def test_messages_with_calls_as_templates_want_them() -> None:
    read = read_messages(CALL_MESSAGES, "messages")
    assert read[1] == {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "weather", "arguments": {"city": "Rome"}},
            }
        ],
    }
    assert read[2] == {"role": "tool", "content": "sunny", "tool_call_id": "call_1"}


@pytest.mark.parametrize(
    ("arguments", "expected"), [("", {}), (" {} ", {}), ("[1]", "[1]"), ('{"a":', '{"a":')]
)
def test_arguments_that_are_no_object_stay_text(arguments: str, expected: Any) -> None:
    call = {"id": "a", "function": {"name": "f", "arguments": arguments}}
    read = read_messages([{"role": "assistant", "content": None, "tool_calls": [call]}], "m")
    assert read[0]["tool_calls"][0]["function"]["arguments"] == expected


CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
WRONG_MESSAGES: list[tuple[dict[str, Any], str]] = [
    ({"role": "assistant", "content": 5}, "content"),
    ({"role": "user", "content": None, "tool_calls": [CALL]}, "tool_calls"),
    ({"role": "user", "content": "a", "reasoning_content": "b"}, "reasoning_content"),
    ({"role": "tool", "content": "a"}, "tool_call_id"),
    ({"role": "tool", "content": None, "tool_call_id": "a"}, "content"),
    ({"role": "tool", "content": "a", "tool_call_id": ""}, "tool_call_id"),
    ({"role": "assistant", "tool_calls": 5}, "tool_calls"),
    ({"role": "assistant", "tool_calls": [5]}, "tool_calls[0]"),
    ({"role": "assistant", "tool_calls": [{**CALL, "id": 5}]}, "tool_calls[0].id"),
    ({"role": "assistant", "tool_calls": [{**CALL, "type": "x"}]}, "tool_calls[0].type"),
    ({"role": "assistant", "tool_calls": [{"id": "a"}]}, "tool_calls[0].function"),
    (
        {"role": "assistant", "tool_calls": [CALL, {**CALL, "function": {"name": "f"}}]},
        "tool_calls[1].function.arguments",
    ),
    (
        {"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "", "arguments": ""}}]},
        "tool_calls[0].function.name",
    ),
    ({"role": "assistant", "content": "a", "function_call": {"name": "f"}}, "function_call"),
]


@pytest.mark.parametrize(("message", "path"), WRONG_MESSAGES)
def test_rows_41_42_79_wrong_messages_are_named(message: dict[str, Any], path: str) -> None:
    with pytest.raises(RequestError) as caught:
        read_messages([{"role": "user", "content": "a"}, message], "messages")
    assert caught.value.param == f"messages[1].{path}"


def test_what_clients_keep_beside_a_call_is_left_out() -> None:
    function: Any = CALL["function"]
    call = {**CALL, "index": 0, "provider_specific_fields": None, "extra_content": {"a": 1}}
    call["function"] = {**function, "provider_specific_fields": {"b": 2}}
    messages = [{"role": "assistant", "tool_calls": [call]}]
    plain = [{"role": "assistant", "tool_calls": [CALL]}]
    assert read_messages(messages, "messages") == read_messages(plain, "messages")


def test_ids_of_calls() -> None:
    ids = {call_id(rid, index, "hermes") for rid in ("r", "s") for index in (0, 1)}
    assert len(ids) == 4
    assert call_id("r", 0, "hermes") in ids
    assert all(made.startswith("call_") for made in ids)
    assert MISTRAL_ID.fullmatch(call_id("r", 0, "mistral"))


def test_ids_of_other_servers_fit_mistral_templates() -> None:
    read = read_messages(CALL_MESSAGES, "messages")
    assert with_template_ids(read, "hermes") is read
    changed = with_template_ids(read, "mistral")
    made = changed[1]["tool_calls"][0]["id"]
    assert MISTRAL_ID.fullmatch(made)
    assert changed[2]["tool_call_id"] == made
    assert json.dumps(read).count("call_1") == 2
    kept = with_template_ids(changed, "mistral")
    assert kept[2]["tool_call_id"] == made
