"""Tools, thinking and structured output of /v1/messages: round trips over a real socket.

The failures guarded: calls whose arguments or ids do not come back, blocks in another order than
the text's, thinking that is taken for the answer, a choice of tools that forces nothing.
"""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.integration.http.shapes.message_events import message_of, without_ids
from tests.support.cases.http_bodies import (
    CHAT,
    COUNT,
    MESSAGES,
    chat_body,
    message_body,
    named_events_of,
)
from tests.support.fakes.served_app import ServedApp, serve_app
from tests.support.models.text_models import write_text_model
from tests.support.models.tool_models import CALL_MESSAGES, HERMES, WEATHER, tagged_tokenizer

pytestmark = pytest.mark.anyio

ARGUMENTS = '{"city": "Rome", "days": 2}'
CALL = f'<tool_call>\n{{"name": "weather", "arguments": {ARGUMENTS}}}\n</tool_call>'
FUNCTION = WEATHER["function"]
TOOL = {
    "name": "weather",
    "description": FUNCTION["description"],
    "input_schema": FUNCTION["parameters"],
    "strict": True,
    "cache_control": {"type": "ephemeral"},
}
ROUND_TRIP: list[dict[str, Any]] = [
    {"role": "user", "content": "How is the weather in Rome?"},
    {
        "role": "assistant",
        "content": [
            {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Rome"}}
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "call_1", "content": "sunny", "is_error": False},
            {"type": "text", "text": "And in Oslo?"},
        ],
    },
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
    whole = await client.post(MESSAGES, json=body)
    assert whole.status_code == 200, whole.text
    stream = await client.post(MESSAGES, json={**body, "stream": True})
    message = message_of(named_events_of(stream.text))
    answer: dict[str, Any] = whole.json()
    assert without_ids(message) == without_ids(answer)
    return answer


async def test_calls_in_the_order_of_the_text(app: ServedApp, client: httpx.AsyncClient) -> None:
    app.answer(f"<think>\nhm\n</think>\n\nLet me see.\n{CALL}\n{CALL}\n")
    answer = await both(client, message_body(tools=[TOOL]))
    thinking, said, first, second = answer["content"]
    assert thinking == {"type": "thinking", "thinking": "hm", "signature": ""}
    assert said == {"type": "text", "text": "Let me see."}
    assert first["id"] != second["id"]
    for call in (first, second):
        assert (call["type"], call["name"]) == ("tool_use", "weather")
        assert call["input"] == {"city": "Rome", "days": 2}
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("tool_use", None)
    thought = app.tokenizer.encode("<think>\nhm\n</think>", add_special_tokens=False).ids
    assert answer["usage"]["output_tokens_details"] == {"thinking_tokens": len(thought)}


async def test_an_answer_that_is_all_calls(app: ServedApp, client: httpx.AsyncClient) -> None:
    app.answer(CALL)
    (call,) = (await both(client, message_body(tools=[TOOL])))["content"]
    assert call["type"] == "tool_use"


async def test_a_round_trip_is_the_chat_s(app: ServedApp, client: httpx.AsyncClient) -> None:
    body = message_body(tools=[TOOL]) | {"messages": ROUND_TRIP}
    await both(client, body)
    chat = chat_body(tools=[WEATHER]) | {"messages": CALL_MESSAGES}
    assert (await client.post(CHAT, json=chat)).is_success
    ours, _, theirs = app.door.requests
    assert ours.prompt_ids == theirs.prompt_ids
    assert ours.sampling.grammar == theirs.sampling.grammar
    counted = await client.post(COUNT, json=body)
    assert counted.json() == {"input_tokens": len(ours.prompt_ids)}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"city": {"$ref": "http://elsewhere/city"}}},
        {"type": "object", "properties": 0},
    ],
)
async def test_what_is_counted_would_be_answered(
    client: httpx.AsyncClient, schema: dict[str, Any]
) -> None:
    body = message_body(tools=[TOOL | {"input_schema": schema}])
    answered, counted = [await client.post(path, json=body) for path in (MESSAGES, COUNT)]
    assert answered.status_code == counted.status_code == 400
    assert answered.json()["error"] == counted.json()["error"]
    assert "tools" in counted.json()["error"]["message"]


async def test_blocks_keep_their_order(app: ServedApp, client: httpx.AsyncClient) -> None:
    """Texts around results are messages of their own."""
    user = ROUND_TRIP[2]
    before = {"type": "text", "text": "Well:"}
    results = [{**user, "content": [before, *user["content"]]}]
    body = message_body(tools=[TOOL]) | {"messages": [*ROUND_TRIP[:2], *results]}
    await both(client, body)
    messages = [*CALL_MESSAGES[:2], {"role": "user", "content": "Well:"}, *CALL_MESSAGES[2:]]
    chat = chat_body(tools=[WEATHER]) | {"messages": messages}
    assert (await client.post(CHAT, json=chat)).is_success
    ours, _, theirs = app.door.requests
    assert ours.prompt_ids == theirs.prompt_ids


async def test_an_answer_with_a_call_can_be_sent_back(
    app: ServedApp, client: httpx.AsyncClient
) -> None:
    app.answer(f"<think>\nhm\n</think>\n\nLet me see.\n{CALL}")
    question = {"role": "user", "content": "How is the weather?"}
    answer = await both(client, message_body(tools=[TOOL]) | {"messages": [question]})
    (call,) = (block for block in answer["content"] if block["type"] == "tool_use")
    result = {
        "type": "tool_result",
        "tool_use_id": call["id"],
        "content": [{"type": "text", "text": "sun"}, {"type": "text", "text": "ny"}],
    }
    again = [
        question,
        {"role": "assistant", "content": answer["content"]},
        {"role": "user", "content": [result]},
    ]
    await both(client, message_body(tools=[TOOL]) | {"messages": again})
    text = app.tokenizer.decode(list(app.door.requests[-1].prompt_ids), skip_special_tokens=False)
    assert "<think>\nhm\n</think>\n\nLet me see.\n<tool_call>" in text
    assert f'{{"name": "weather", "arguments": {ARGUMENTS}}}' in text
    assert "<tool_response>\nsunny\n</tool_response>" in text


CHOICES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "auto": ({"type": "auto"}, {"tool_choice": "auto"}),
    "any": ({"type": "any"}, {"tool_choice": "required"}),
    "none": ({"type": "none"}, {"tool_choice": "none"}),
    "tool": (
        {"type": "tool", "name": "weather"},
        {"tool_choice": {"type": "function", "function": {"name": "weather"}}},
    ),
    "lone": (
        {"type": "any", "disable_parallel_tool_use": True},
        {"tool_choice": "required", "parallel_tool_calls": False},
    ),
}


@pytest.mark.parametrize("case", CHOICES)
async def test_what_a_choice_of_tools_forces(
    app: ServedApp, client: httpx.AsyncClient, case: str
) -> None:
    choice, fields = CHOICES[case]
    app.answer(f"{CALL}\n{CALL}")
    answer = await both(client, message_body(tools=[TOOL], tool_choice=choice))
    assert (await client.post(CHAT, json=chat_body(tools=[WEATHER], **fields))).is_success
    ours, _, theirs = app.door.requests
    assert ours.sampling.grammar == theirs.sampling.grammar
    assert (ours.sampling.grammar == "") == (case == "none")
    num_calls = sum(block["type"] == "tool_use" for block in answer["content"])
    assert num_calls == {"none": 0, "lone": 1}.get(case, 2)


async def test_a_tool_that_is_not_there(client: httpx.AsyncClient) -> None:
    body = message_body(tools=[TOOL], tool_choice={"type": "tool", "name": "other"})
    response = await client.post(MESSAGES, json=body)
    assert response.status_code == 400
    message = response.json()["error"]["message"]
    assert message == "tool_choice.name: must be a function of tools"


async def test_a_call_that_max_tokens_cuts(app: ServedApp, client: httpx.AsyncClient) -> None:
    """Its object is empty, for what there is of it is none; the stream has the pieces."""
    app.answer(CALL)
    num_tokens = len(app.tokenizer.encode(CALL).ids) - 8
    body = message_body(tools=[TOOL], max_tokens=num_tokens)
    answer = (await client.post(MESSAGES, json=body)).json()
    assert answer["stop_reason"] == "max_tokens"
    assert answer["content"][0]["input"] == {}
    stream = await client.post(MESSAGES, json={**body, "stream": True})
    deltas = [event.get("delta", {}) for event in named_events_of(stream.text)]
    pieces = "".join(part.get("partial_json", "") for part in deltas)
    assert pieces
    assert ARGUMENTS.startswith(pieces)


async def test_an_answer_is_json_whatever_the_model_wrote_in_a_call(
    app: ServedApp, client: httpx.AsyncClient
) -> None:
    """No JSON can hold this number: the object is empty, and the stream has the text."""
    arguments = '{"days": 1e999}'
    app.answer(f'<tool_call>\n{{"name": "weather", "arguments": {arguments}}}\n</tool_call>')
    body = message_body(tools=[{**TOOL, "strict": False}])
    response = await client.post(MESSAGES, json=body)
    assert response.status_code == 200, response.text

    def refused(name: str) -> None:
        pytest.fail(f"{name} is not JSON")

    (call,) = json.loads(response.text, parse_constant=refused)["content"]
    assert (call["name"], call["input"]) == ("weather", {})
    stream = await client.post(MESSAGES, json={**body, "stream": True})
    deltas = [event.get("delta", {}) for event in named_events_of(stream.text)]
    assert "".join(part.get("partial_json", "") for part in deltas) == arguments


async def test_a_stop_sequence_that_cuts_a_call_is_why_it_ended(
    app: ServedApp, client: httpx.AsyncClient
) -> None:
    app.answer(f"So {CALL}")
    body = message_body(tools=[TOOL], stop_sequences=["Rome"])
    answer = (await client.post(MESSAGES, json=body)).json()
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", "Rome")


async def test_structured_output(app: ServedApp, client: httpx.AsyncClient) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    form = {"type": "json_schema", "schema": schema}
    await both(client, message_body(output_config={"format": form, "effort": "low"}))
    wanted = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    assert (await client.post(CHAT, json=chat_body(response_format=wanted))).is_success
    ours, _, theirs = app.door.requests
    assert ours.sampling.grammar == theirs.sampling.grammar != ""
    form = {"type": "json_schema", "schema": {"$ref": "#"}}
    refused = await client.post(MESSAGES, json=message_body(output_config={"format": form}))
    assert refused.status_code == 400
    assert refused.json()["error"]["message"].startswith("output_config.format: ")
