"""/v1/responses over a real socket: bodies and what becomes of them, streams that say the same as
whole answers, what is refused because nothing is stored.

The failures guarded: an input that is read otherwise than the chat it means, events whose pieces
are another answer, a client that believes its conversation was kept.
"""

import re
from collections.abc import Sequence
from typing import Any

import httpx
import openai
import pytest

from shared.errors import AttemptError, OverloadedError
from tests.integration.http.refusals import check_error
from tests.integration.http.shapes.response_events import response_of, text_of_item, without_ids
from tests.support.cases.http_bodies import (
    CHAT,
    RESPONSES,
    chat_body,
    named_events_of,
    response_body,
)
from tests.support.fakes.served_app import ServedApp, delta
from tests.support.models.text_models import MODEL_NAME

pytestmark = pytest.mark.anyio

SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "hello"}
ANSWER = {"role": "assistant", "content": "hi"}
GOOD: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "string": (response_body(), [USER]),
    "instructions": (response_body(instructions="Be brief."), [SYSTEM, USER]),
    "messages": (response_body([SYSTEM, {**USER, "type": "message"}]), [SYSTEM, USER]),
    "developer": (response_body([{**SYSTEM, "role": "developer"}, USER]), [SYSTEM, USER]),
    "parts": (
        response_body(
            [
                {
                    "role": "user",
                    "content": [{"type": "input_text", "text": t} for t in ("hel", "lo")],
                }
            ]
        ),
        [USER],
    ),
    "answer-that-comes-back": (
        response_body(
            [
                USER,
                {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "x"},
                {
                    "id": "msg_1",
                    "type": "message",
                    "role": "assistant",
                    "status": "completed",
                    "content": [
                        {"type": "output_text", "text": "hi", "annotations": [], "logprobs": []}
                    ],
                },
                USER,
            ]
        ),
        [USER, ANSWER, USER],
    ),
    "neutral": (
        response_body(
            store=False,
            background=False,
            include=["reasoning.encrypted_content"],
            metadata={"a": "b"},
            previous_response_id=None,
            prompt_cache_key="k",
            service_tier="auto",
            stream_options={"include_obfuscation": False},
            text={"format": {"type": "text"}, "verbosity": "low"},
            tools=[],
            top_logprobs=0,
            truncation="disabled",
            user="me",
        ),
        [USER],
    ),
}
"""body -> the messages of the chat that it means"""
BAD: dict[str, tuple[dict[str, Any], str, str]] = {
    "no-input": ({"input": None}, "input", "input: must be a non-empty string"),
    "empty": ({"input": []}, "input", "input: must be a non-empty string"),
    "only-reasoning": ({"input": [{"type": "reasoning"}]}, "input", "input: must be a list with"),
    "previous": (
        {"previous_response_id": "resp_1"},
        "previous_response_id",
        "previous_response_id: nothing is stored here; send the whole conversation as input",
    ),
    "store": ({"store": True}, "store", "store: nothing is stored here; send the whole"),
    "conversation": ({"conversation": "c"}, "conversation", "conversation: not supported"),
    "background": ({"background": True}, "background", "background: not supported; leave it out"),
    "reference": (
        {"input": [{"type": "item_reference", "id": "msg_1"}]},
        "input[0]",
        "input[0]: items of type 'item_reference' are not supported; nothing is stored here",
    ),
    "image": (
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
        "input[0].content[0]",
        "input[0].content[0]: parts of type 'input_image' are not supported; send text",
    ),
    "item": (
        {"input": [USER, {"type": "web_search_call"}]},
        "input[1]",
        "input[1]: items of type 'web_search_call' are not supported; send messages",
    ),
    "role": ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role", "input[0].role: must"),
    "limit": (
        {"max_output_tokens": 0},
        "max_output_tokens",
        "max_output_tokens: must be an integer",
    ),
    "hosted-tool": (
        {"tools": [{"type": "web_search"}]},
        "tools[0].type",
        "tools[0].type: tools of type 'web_search' are not supported; offer functions of your own",
    ),
    "tool-field": (
        {"tools": [{"type": "function", "name": "f", "x": 1}]},
        "tools[0].x",
        "tools[0].x: not supported",
    ),
    "choice": ({"tool_choice": {"type": "mcp"}}, "tool_choice", "tool_choice: must be none, auto"),
    "effort": ({"reasoning": {"effort": "some"}}, "reasoning.effort", "reasoning.effort: must be"),
    "format": ({"text": {"format": {"type": "xml"}}}, "text.format", "text.format: must be an"),
    "schema": (
        {"text": {"format": {"type": "json_schema", "name": "a"}}},
        "text.format.schema",
        "text.format.schema: must be a JSON Schema object",
    ),
    "of-a-chat": ({"seed": 1}, "seed", "seed: not supported; leave it out"),
    "calls": (
        {
            "input": [
                USER,
                {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "1", "output": "x"},
            ]
        },
        "input[1]",
        "input[1]: the model's chat template knows no tools",
    ),
    "long": (
        {"input": "long " * 5000},
        "input",
        "This model's maximum context length is 512 tokens. However, your input resulted in",
    ),
}
"""changes of a good body -> the error's param and how its message begins"""


async def asked(client: httpx.AsyncClient, body: dict[str, Any]) -> dict[str, Any]:
    response = await client.post(RESPONSES, json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def streamed(client: httpx.AsyncClient, body: dict[str, Any]) -> list[dict[str, Any]]:
    response = await client.post(RESPONSES, json={**body, "stream": True})
    assert response.status_code == 200, response.text
    return named_events_of(response.text)


@pytest.mark.parametrize("case", GOOD)
async def test_a_body_means_a_chat(app: ServedApp, client: httpx.AsyncClient, case: str) -> None:
    """The workers get what they would get for the chat, token by token."""
    body, messages = GOOD[case]
    answer = await asked(client, body)
    assert (await client.post(CHAT, json=chat_body() | {"messages": messages})).is_success
    ours, chat = app.door.requests
    assert ours.prompt_ids == chat.prompt_ids
    assert ours.block_hashes == chat.block_hashes
    assert (answer["id"], answer["object"]) == (f"resp_{ours.rid}", "response")
    assert (answer["status"], answer["error"]) == ("completed", None)
    assert answer["metadata"] == body.get("metadata", {})
    (item,) = answer["output"]
    assert item == {
        "id": item["id"],
        "type": "message",
        "status": "completed",
        "role": "assistant",
        "content": [
            {"type": "output_text", "text": "hello world", "annotations": [], "logprobs": []}
        ],
    }


async def test_the_answer_repeats_what_was_asked(client: httpx.AsyncClient) -> None:
    asked_for = {
        "instructions": "Be brief.",
        "max_output_tokens": 9,
        "metadata": {"a": "b"},
        "parallel_tool_calls": False,
        "temperature": 0.5,
        "tool_choice": "none",
        "top_p": 0.9,
    }
    answer = await asked(client, response_body(**asked_for))
    assert {name: answer[name] for name in asked_for} == asked_for
    assert (answer["store"], answer["tools"], answer["previous_response_id"]) == (False, [], None)


@pytest.mark.parametrize("text", ["hello world", "", "the quick brown fox \u00e9\u4e16 \"'\n"])
async def test_a_stream_says_the_same(app: ServedApp, client: httpx.AsyncClient, text: str) -> None:
    app.answer(text)
    app.door.cached_tokens = 3
    whole = await asked(client, response_body())
    assert "".join(map(text_of_item, whole["output"])) == text
    events = await streamed(client, response_body())
    assert without_ids(response_of(events)) == without_ids(whole)
    if text:
        assert len(events) >= 10


async def test_a_stream_whose_tokens_arrive_together(
    app: ServedApp, client: httpx.AsyncClient
) -> None:
    ids = app.tokenizer.encode("hello world", add_special_tokens=False).ids
    app.door.script = lambda _: [delta(tuple(ids), "stop")]
    (item,) = response_of(await streamed(client, response_body()))["output"]
    assert text_of_item(item) == "hello world"


async def test_a_limit_makes_it_incomplete(app: ServedApp, client: httpx.AsyncClient) -> None:
    body = response_body(max_output_tokens=2)
    for answer in (await asked(client, body), response_of(await streamed(client, body))):
        assert answer["status"] == "incomplete"
        assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
        assert answer["output"][0]["status"] == "incomplete"
    assert app.door.requests[0].sampling.max_tokens == 2


async def test_usage(app: ServedApp, client: httpx.AsyncClient) -> None:
    app.door.cached_tokens = 4
    usage = (await asked(client, response_body()))["usage"]
    num_input = len(app.door.requests[0].prompt_ids)
    num_output = len(app.tokenizer.encode("hello world").ids) + 1
    assert usage == {
        "input_tokens": num_input,
        "input_tokens_details": {"cached_tokens": 4},
        "output_tokens": num_output,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": num_input + num_output,
    }


@pytest.mark.parametrize("case", BAD)
async def test_what_is_refused(app: ServedApp, client: httpx.AsyncClient, case: str) -> None:
    fields, param, expected = BAD[case]
    response = await client.post(RESPONSES, json=response_body() | fields)
    assert response.status_code == 400, response.text
    check_error(response.content, response.headers, 400, None, param)
    message = response.json()["error"]["message"]
    assert message.startswith(expected), message
    assert app.door.requests == []


async def test_a_model_without_tools_refuses_them(client: httpx.AsyncClient) -> None:
    tool = {"type": "function", "name": "f", "parameters": None}
    response = await client.post(RESPONSES, json=response_body(tools=[tool]))
    assert (response.status_code, response.json()["error"]["param"]) == (400, "tools")


async def test_fields_that_change_nothing_are_named(client: httpx.AsyncClient) -> None:
    fields = {"nobody_knows": 1, "reasoning": {"effort": "low", "summary": "auto"}}
    response = await client.post(RESPONSES, json=response_body(max_output_tokens=9999, **fields))
    named = response.headers["x-baton-ignored"].split(", ")
    assert named == ["nobody_knows", "reasoning.summary", "reasoning.effort"]
    assert re.fullmatch(r"max_output_tokens=\d+", response.headers["x-baton-clamped"])


@pytest.mark.parametrize("stream", [False, True])
async def test_a_refusal_has_its_status(
    app: ServedApp, client: httpx.AsyncClient, stream: bool
) -> None:
    app.door.script = lambda _: [OverloadedError("the line is full", retry_after_s=3.0)]
    response = await client.post(RESPONSES, json=response_body(stream=stream))
    assert (response.status_code, response.headers["retry-after"]) == (429, "3")
    check_error(response.content, response.headers, 429, "rate_limit_exceeded")


async def test_a_failure_after_the_first_token_is_the_last_event(
    app: ServedApp, client: httpx.AsyncClient
) -> None:
    app.door.script = lambda _: [delta((70,)), AttemptError("lost", code="worker_lost")]
    answer = response_of(await streamed(client, response_body()))
    assert answer["status"] == "failed"
    assert answer["error"] == {"code": "worker_lost", "message": "lost"}


async def test_a_receipt_and_its_path(app: ServedApp, client: httpx.AsyncClient) -> None:
    answer = await asked(client, response_body())
    rid = app.door.requests[0].rid
    app.door.receipts[rid] = {"tenant": "default", "id": rid}
    assert (await client.get(f"/v1/baton/requests/{answer['id']}")).json()["id"] == rid


@pytest.fixture
def turns() -> Sequence[Any]:
    return [{"role": "user", "content": "hello"}]


async def test_openai_s_client(app: ServedApp, turns: Sequence[Any]) -> None:
    """Its helpers put a stream together themselves, and its output can be sent back."""
    async with openai.AsyncOpenAI(base_url=f"{app.url}/v1", api_key="any") as api:
        whole = await api.responses.create(model=MODEL_NAME, input=list(turns))
        assert whole.output_text == "hello world"
        async with api.responses.stream(model=MODEL_NAME, input=list(turns)) as stream:
            pieces = [
                event.delta async for event in stream if event.type == "response.output_text.delta"
            ]
            final = await stream.get_final_response()
        assert "".join(pieces) == final.output_text == "hello world"
        assert final.usage == whole.usage
        again: Any = [*turns, *[item.model_dump() for item in whole.output], *turns]
        assert (await api.responses.create(model=MODEL_NAME, input=again)).output_text
        with pytest.raises(openai.BadRequestError, match="nothing is stored here"):
            await api.responses.create(model=MODEL_NAME, input="hi", previous_response_id=whole.id)
