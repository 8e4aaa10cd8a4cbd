"""Tools, reasoning and structured output of /v1/responses: round trips over a real socket.

The failures guarded: calls whose arguments or ids do not come back, items in another order than
the text's, calls of one answer that become several, a choice of tools that forces nothing.
"""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.integration.http.shapes.response_events import response_of, text_of_item, without_ids
from tests.support.cases.http_bodies import (
    CHAT,
    RESPONSES,
    chat_body,
    named_events_of,
    response_body,
)
from tests.support.fakes.served_app import ServedApp, serve_app
from tests.support.models.text_models import write_text_model
from tests.support.models.tool_models import CALL_MESSAGES, HERMES, WEATHER, tagged_tokenizer

pytestmark = pytest.mark.anyio

ARGUMENTS = '{"city": "Rome", "days": 2}'
CALL = f'<tool_call>\n{{"name": "weather", "arguments": {ARGUMENTS}}}\n</tool_call>'
TOOL = {"type": "function", **WEATHER["function"]}
QUESTION = {"role": "user", "content": "How is the weather in Rome?"}
ROUND_TRIP: list[dict[str, Any]] = [
    QUESTION,
    {
        "type": "function_call",
        "call_id": "call_1",
        "name": "weather",
        "arguments": '{"city": "Rome"}',
    },
    {"type": "function_call_output", "call_id": "call_1", "output": "sunny"},
    {"role": "user", "content": "And in Oslo?"},
]
"""what CALL_MESSAGES say"""


@pytest.fixture(scope="module")
async def running_app(
    tmp_path_factory: pytest.TempPathFactory, anyio_backend: object
) -> AsyncIterator[ServedApp]:
    tokenizer = tagged_tokenizer(special=True)
    directory = write_text_model(tmp_path_factory.mktemp("hermes"), tokenizer, HERMES)
    async with serve_app(directory, tokenizer) as served:
        yield served


async def both(client: httpx.AsyncClient, body: dict[str, Any]) -> dict[str, Any]:
    """The answer; checks that its stream says the same."""
    whole = await client.post(RESPONSES, json=body)
    assert whole.status_code == 200, whole.text
    stream = await client.post(RESPONSES, json={**body, "stream": True})
    response = response_of(named_events_of(stream.text))
    answer: dict[str, Any] = whole.json()
    assert without_ids(response) == without_ids(answer)
    return answer


async def test_items_in_the_order_of_the_text(app: ServedApp, client: httpx.AsyncClient) -> None:
    app.answer(f"<think>\nhm\n</think>\n\nLet me see.\n{CALL}\n{CALL}\n")
    answer = await both(client, response_body(tools=[TOOL]))
    reasoning, said, first, second = answer["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "hm"}]
    assert (said["type"], text_of_item(said)) == ("message", "Let me see.")
    assert first["call_id"] != second["call_id"]
    for call in (first, second):
        assert (call["type"], call["name"]) == ("function_call", "weather")
        assert (call["arguments"], call["status"]) == (ARGUMENTS, "completed")
    assert len({item["id"] for item in answer["output"]}) == 4
    thought = app.tokenizer.encode("<think>\nhm\n</think>", add_special_tokens=False).ids
    assert answer["usage"]["output_tokens_details"] == {"reasoning_tokens": len(thought)}


async def test_a_round_trip_is_the_chat_s(app: ServedApp, client: httpx.AsyncClient) -> None:
    await both(client, response_body(ROUND_TRIP, tools=[TOOL]))
    chat = chat_body(tools=[WEATHER]) | {"messages": CALL_MESSAGES}
    assert (await client.post(CHAT, json=chat)).is_success
    ours, _, theirs = app.door.requests
    assert ours.prompt_ids == theirs.prompt_ids
    assert ours.sampling.grammar == theirs.sampling.grammar


async def test_output_that_is_sent_back_is_one_answer(
    app: ServedApp, client: httpx.AsyncClient
) -> None:
    """Text and two calls are three items, and one message of the model's; reasoning is left out."""
    app.answer(f"<think>\nhm\n</think>\n\nLet me see.\n{CALL}\n{CALL}")
    answer = await both(client, response_body([QUESTION], tools=[TOOL]))
    calls = [item for item in answer["output"] if item["type"] == "function_call"]
    parts = [{"type": "input_text", "text": "sun"}, {"type": "input_text", "text": "ny"}]
    results = [
        {"type": "function_call_output", "call_id": call["call_id"], "output": parts}
        for call in calls
    ]
    again = response_body([QUESTION, *answer["output"], *results])
    await both(client, again)
    said = {
        "role": "assistant",
        "content": "Let me see.",
        "tool_calls": [
            {
                "id": call["call_id"],
                "type": "function",
                "function": {"name": "weather", "arguments": ARGUMENTS},
            }
            for call in calls
        ],
    }
    tools = [
        {"role": "tool", "tool_call_id": call["call_id"], "content": "sunny"} for call in calls
    ]
    chat = chat_body() | {"messages": [QUESTION, said, *tools]}
    assert (await client.post(CHAT, json=chat)).is_success
    *_, ours, theirs = app.door.requests
    assert ours.prompt_ids == theirs.prompt_ids


CHOICES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "auto": ({"tool_choice": "auto"}, {"tool_choice": "auto"}),
    "required": ({"tool_choice": "required"}, {"tool_choice": "required"}),
    "none": ({"tool_choice": "none"}, {"tool_choice": "none"}),
    "function": (
        {"tool_choice": {"type": "function", "name": "weather"}},
        {"tool_choice": {"type": "function", "function": {"name": "weather"}}},
    ),
    "lone": (
        {"tool_choice": "required", "parallel_tool_calls": False},
        {"tool_choice": "required", "parallel_tool_calls": False},
    ),
}


@pytest.mark.parametrize("case", CHOICES)
async def test_what_a_choice_of_tools_forces(
    app: ServedApp, client: httpx.AsyncClient, case: str
) -> None:
    ours_say, chat_says = CHOICES[case]
    app.answer(f"{CALL}\n{CALL}")
    answer = await both(client, response_body(tools=[TOOL], **ours_say))
    assert (await client.post(CHAT, json=chat_body(tools=[WEATHER], **chat_says))).is_success
    ours, _, theirs = app.door.requests
    assert ours.sampling.grammar == theirs.sampling.grammar
    assert (ours.sampling.grammar == "") == (case == "none")
    num_calls = sum(item["type"] == "function_call" for item in answer["output"])
    assert num_calls == {"none": 0, "lone": 1}.get(case, 2)


async def test_a_function_that_is_not_there(client: httpx.AsyncClient) -> None:
    choice = {"type": "function", "name": "other"}
    response = await client.post(RESPONSES, json=response_body(tools=[TOOL], tool_choice=choice))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "tool_choice.name"


async def test_a_call_that_the_limit_cuts(app: ServedApp, client: httpx.AsyncClient) -> None:
    app.answer(CALL)
    num_tokens = len(app.tokenizer.encode(CALL).ids) - 8
    answer = await both(client, response_body(tools=[TOOL], max_output_tokens=num_tokens))
    (call,) = answer["output"]
    assert (answer["status"], call["status"]) == ("incomplete", "incomplete")
    assert ARGUMENTS.startswith(call["arguments"])
    assert call["arguments"] != ARGUMENTS


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
FORMATS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "schema": (
        {"type": "json_schema", "name": "a", "schema": SCHEMA, "strict": True},
        {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}},
    ),
    "object": ({"type": "json_object"}, {"type": "json_object"}),
}


@pytest.mark.parametrize("case", FORMATS)
async def test_structured_output(app: ServedApp, client: httpx.AsyncClient, case: str) -> None:
    ours_says, chat_says = FORMATS[case]
    await both(client, response_body(text={"format": ours_says}))
    assert (await client.post(CHAT, json=chat_body(response_format=chat_says))).is_success
    ours, _, theirs = app.door.requests
    assert ours.sampling.grammar == theirs.sampling.grammar != ""


async def test_a_schema_that_nobody_can_follow(client: httpx.AsyncClient) -> None:
    form = {"type": "json_schema", "name": "a", "schema": {"$ref": "#"}}
    response = await client.post(RESPONSES, json=response_body(text={"format": form}))
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("invalid_schema", "text.format")
