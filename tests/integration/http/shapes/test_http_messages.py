"""/v1/messages over a real socket: bodies and what becomes of them, streams that say the same as
whole answers, endings, errors and counts in Anthropic's shape.

The failures guarded: a body that is read otherwise than the chat it means, a stream whose pieces
are another answer, a refusal that Anthropic's clients cannot read, tokens counted twice or not.
"""

import asyncio
import re
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from services.gateway.owner.generation import GenerateRequest
from shared.errors import AttemptError, BatonError, OverloadedError
from tests.integration.http.shapes.message_events import message_of, without_ids
from tests.support.cases.http_bodies import (
    CHAT,
    COUNT,
    MESSAGES,
    chat_body,
    message_body,
    named_events_of,
)
from tests.support.fakes.served_app import ServedApp, Step, delta

pytestmark = pytest.mark.anyio

CACHED = {"cache_control": {"type": "ephemeral"}}
SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "hello"}
GOOD: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "text": (message_body(), [USER]),
    "blocks": (
        message_body([{"type": "text", "text": "hel", **CACHED}, {"type": "text", "text": "lo"}]),
        [USER],
    ),
    "system": (message_body(system="Be brief."), [SYSTEM, USER]),
    "system-blocks": (
        message_body(system=[{"type": "text", "text": "Be brief.", **CACHED}]),
        [SYSTEM, USER],
    ),
    "system-message": (
        message_body() | {"messages": [USER, {"role": "system", "content": "Be brief."}, USER]},
        [USER, SYSTEM, USER],
    ),
    "empty-answer-that-comes-back": (
        message_body() | {"messages": [USER, {"role": "assistant", "content": []}, USER]},
        [USER, {"role": "assistant", "content": ""}, USER],
    ),
    "answer-that-comes-back": (
        message_body()
        | {
            "messages": [
                USER,
                {
                    "role": "assistant",
                    "content": [
                        {"type": "text", "text": "hi", "citations": None},
                        {"type": "redacted_thinking", "data": "x"},
                    ],
                },
                USER,
            ]
        },
        [USER, {"role": "assistant", "content": "hi"}, USER],
    ),
    "neutral": (
        message_body(
            metadata={"user_id": "me"},
            service_tier="auto",
            container=None,
            context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            tools=[],
            **CACHED,
        ),
        [USER],
    ),
}
"""body -> the messages of the chat that it means"""
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no-max-tokens": ({"max_tokens": None}, "max_tokens: must be an integer from 1"),
    "no-messages": ({"messages": []}, "messages: must be a list of at least one message"),
    "no-content": ({"messages": [{"role": "user"}]}, "messages[0].content: must be a string or"),
    "role": ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role: must be one of"),
    "image": (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, IMAGE]}]},
        "messages[0].content[1]: blocks of type 'image' are not supported here; send text",
    ),
    "document": (
        {"messages": [{"role": "user", "content": [{"type": "document", "source": {}}]}]},
        "messages[0].content[0]: blocks of type 'document' are not supported here; send text",
    ),
    "image-in-a-result": (
        {
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "tool_result", "tool_use_id": "t", "content": [IMAGE]}],
                }
            ]
        },
        "messages[0].content[0].content[0]: blocks of type 'image'",
    ),
    "call-of-a-user": (
        {"messages": [{"role": "user", "content": [{"type": "tool_use"}]}]},
        "messages[0].content[0]: blocks of type 'tool_use'",
    ),
    "system": ({"system": 5}, "system: must be a string or a list of at least one block"),
    "no-system": ({"system": []}, "system: must be a string or a list of at least one block"),
    "no-blocks": (
        {"messages": [{"role": "user", "content": []}]},
        "messages[0].content: must be a string or a list of at least one block",
    ),
    "begun": (
        {"messages": [USER, {"role": "assistant", "content": "The"}]},
        "messages: the last one must be the user's",
    ),
    "no-model": ({"model": None}, "model: must be a string"),
    "temperature": ({"temperature": 2.5}, "temperature: must be a number from 0.0 to 2.0"),
    "top-k": ({"top_k": -1}, "top_k: must be an integer from 0"),
    "stop": ({"stop_sequences": "x"}, "stop_sequences: must be a list of strings"),
    "server-tool": (
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
        "tools[0].type: only tools of your own are supported, with an input_schema",
    ),
    "tool-field": ({"tools": [{"name": "a", "x": 1}]}, "tools[0].x: not supported"),
    "tool-name": ({"tools": [{"name": "a b"}]}, "tools[0].name: must be 1 to 128 letters"),
    "choice": ({"tool_choice": "auto"}, "tool_choice: must be an object with a type: auto, any"),
    "choice-alone": ({"tool_choice": {"type": "any"}}, "tool_choice: must be none or auto"),
    "thinking": ({"thinking": {"type": "on"}}, "thinking: must be an object with a type: enabled"),
    "format": (
        {"output_config": {"format": {"type": "xml"}}},
        "output_config.format: must be an object with type json_schema and a schema",
    ),
    "of-a-chat": ({"seed": 1}, "seed: not supported; leave it out"),
    "hosted": ({"mcp_servers": [{"url": "x"}]}, "mcp_servers: not supported; leave it out or give"),
    "tools": (
        {"tools": [{"name": "f", "input_schema": {"type": "object"}}]},
        "tools: the model's chat template does not mention tools",
    ),
    "calls": (
        {
            "messages": [
                USER,
                {
                    "role": "assistant",
                    "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {}}],
                },
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1"}]},
            ]
        },
        "messages[1]: the model's chat template knows no tools",
    ),
    "long": (
        {"messages": [{"role": "user", "content": "long " * 5000}]},
        "prompt is too long: This model's maximum context length is 512 tokens.",
    ),
}
"""changes of a good body -> how the error's message begins"""


async def asked(client: httpx.AsyncClient, body: dict[str, Any]) -> dict[str, Any]:
    response = await client.post(MESSAGES, json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def streamed(client: httpx.AsyncClient, body: dict[str, Any]) -> list[dict[str, Any]]:
    response = await client.post(MESSAGES, json={**body, "stream": True})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    return named_events_of(response.text)


def check_error(response: httpx.Response, status: int, kind: str) -> str:
    """The exact shape of an error; its message."""
    assert response.status_code == status, response.text
    body = response.json()
    rid = response.headers["x-request-id"]
    assert body == {
        "type": "error",
        "error": {"type": kind, "message": body["error"]["message"]},
        "request_id": rid,
    }
    assert re.fullmatch("[0-9a-f]{32}", rid)
    message: str = body["error"]["message"]
    assert 10 <= len(message) <= 400
    return message


@pytest.mark.parametrize("case", GOOD)
async def test_a_body_means_a_chat(app: ServedApp, client: httpx.AsyncClient, case: str) -> None:
    """The workers get what they would get for the chat, token by token."""
    body, messages = GOOD[case]
    answer = await asked(client, body)
    assert (await client.post(CHAT, json=chat_body() | {"messages": messages})).is_success
    ours, chat = app.door.requests
    assert ours.prompt_ids == chat.prompt_ids
    assert ours.block_hashes == chat.block_hashes
    assert ours.endpoint == "chat"
    assert answer == {
        "id": f"msg_{ours.rid}",
        "type": "message",
        "role": "assistant",
        "model": "tiny-chat",
        "content": [{"type": "text", "text": "hello world"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": answer["usage"],
    }


async def test_the_sampling_that_it_asks_for(app: ServedApp, client: httpx.AsyncClient) -> None:
    fields = {"max_tokens": 7, "temperature": 0.5, "top_p": 0.9, "top_k": 3}
    await asked(client, message_body(**fields))
    (request,) = app.door.requests
    sampling = request.sampling
    assert fields == {name: getattr(sampling, name) for name in fields}


@pytest.mark.parametrize("text", ["hello world", "", "the quick brown fox \u00e9\u4e16 \"'\n"])
async def test_a_stream_says_the_same(app: ServedApp, client: httpx.AsyncClient, text: str) -> None:
    app.answer(text)
    app.door.cached_tokens = 3
    whole = await asked(client, message_body())
    assert "".join(block["text"] for block in whole["content"]) == text
    events = await streamed(client, message_body())
    assert without_ids(message_of(events)) == without_ids(whole)
    if text:
        assert len(events) > 6


async def test_a_stream_whose_tokens_arrive_together(
    app: ServedApp, client: httpx.AsyncClient
) -> None:
    ids = app.tokenizer.encode("hello world", add_special_tokens=False).ids
    app.door.script = lambda _: [delta(tuple(ids), "length")]
    message = message_of(await streamed(client, message_body()))
    assert message["content"] == [{"type": "text", "text": "hello world"}]


@pytest.mark.parametrize(
    ("fields", "reason", "sequence"),
    [
        ({}, "end_turn", None),
        ({"max_tokens": 2}, "max_tokens", None),
        ({"stop_sequences": ["wor", "x"]}, "stop_sequence", "wor"),
    ],
)
async def test_why_it_ended(
    client: httpx.AsyncClient, fields: dict[str, Any], reason: str, sequence: str | None
) -> None:
    body = message_body(**fields)
    for message in (await asked(client, body), message_of(await streamed(client, body))):
        assert (message["stop_reason"], message["stop_sequence"]) == (reason, sequence)


@pytest.mark.parametrize("num_cached", [0, 4])
async def test_usage_is_what_was_counted(
    app: ServedApp, client: httpx.AsyncClient, num_cached: int
) -> None:
    app.door.cached_tokens = num_cached
    body = message_body(system="Be brief.")
    usage = (await asked(client, body))["usage"]
    counted = await client.post(COUNT, json=body)
    assert counted.json() == {"input_tokens": len(app.door.requests[0].prompt_ids)}
    assert usage == {
        "input_tokens": counted.json()["input_tokens"] - num_cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": num_cached,
        "output_tokens": len(app.tokenizer.encode("hello world").ids) + 1,
    }
    first, *_ = await streamed(client, body)
    assert first["message"]["usage"] == {**usage, "output_tokens": 0}


async def test_counting_needs_no_limit_and_counts_what_does_not_fit(
    app: ServedApp, client: httpx.AsyncClient
) -> None:
    body = message_body("long " * 5000)
    del body["max_tokens"]
    response = await client.post(COUNT, json=body)
    assert response.json()["input_tokens"] > 5000
    assert app.door.requests == []


@pytest.mark.parametrize("case", BAD)
async def test_what_is_refused(app: ServedApp, client: httpx.AsyncClient, case: str) -> None:
    fields, expected = BAD[case]
    response = await client.post(MESSAGES, json=message_body() | fields)
    message = check_error(response, 400, "invalid_request_error")
    assert message.startswith(expected), message
    assert app.door.requests == []
    if case not in ("no-max-tokens", "long"):
        counted = await client.post(COUNT, json=message_body() | fields)
        assert check_error(counted, 400, "invalid_request_error") == message


async def test_every_bad_field_is_named_at_once(client: httpx.AsyncClient) -> None:
    response = await client.post(MESSAGES, json=message_body(top_k=-1, system=5, seed=1))
    message = check_error(response, 400, "invalid_request_error")
    assert all(name in message for name in ("top_k: ", "system: ", "seed: "))


async def test_fields_that_nobody_knows_are_named(client: httpx.AsyncClient) -> None:
    fields = {"nobody_knows": 1, "thinking": {"type": "enabled", "budget_tokens": 2048}}
    for path in (MESSAGES, COUNT):
        response = await client.post(path, json=message_body(**fields))
        assert response.status_code == 200
        named = response.headers["x-baton-ignored"].split(", ")
        assert named == ["nobody_knows", "thinking.budget_tokens", "thinking"]


async def test_a_limit_that_does_not_fit_is_clamped(client: httpx.AsyncClient) -> None:
    response = await client.post(MESSAGES, json=message_body(max_tokens=100_000))
    assert re.fullmatch(r"max_tokens=\d+", response.headers["x-baton-clamped"])


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (OverloadedError("full", retry_after_s=3.0), 429, "rate_limit_error"),
        (OverloadedError("no worker", retry_after_s=3.0, status=503), 503, "overloaded_error"),
        (AttemptError("it took too long", code="timeout", status=504), 504, "timeout_error"),
        (AttemptError("a worker was lost", code="worker_lost"), 500, "api_error"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BatonError) else str(value),
)
@pytest.mark.parametrize("stream", [False, True])
async def test_failures(
    app: ServedApp,
    client: httpx.AsyncClient,
    error: BatonError,
    status: int,
    kind: str,
    stream: bool,
) -> None:
    app.door.script = lambda _: [error]
    response = await client.post(MESSAGES, json=message_body(stream=stream))
    check_error(response, status, kind)
    if isinstance(error, OverloadedError):
        assert response.headers["retry-after"] == "3"


async def test_a_failure_after_the_first_token_is_the_last_event(
    app: ServedApp, client: httpx.AsyncClient
) -> None:
    app.door.script = lambda _: [delta((70,)), AttemptError("lost", code="worker_lost")]
    *_, last = await streamed(client, message_body())
    assert last == {
        "type": "error",
        "error": {"type": "api_error", "message": "lost"},
        "request_id": app.door.requests[0].rid,
    }


async def test_what_no_route_of_it_takes(client: httpx.AsyncClient) -> None:
    missing = check_error(await client.post(f"{MESSAGES}/batches"), 404, "not_found_error")
    assert MESSAGES in missing
    check_error(await client.get(MESSAGES), 405, "invalid_request_error")
    text = await client.post(MESSAGES, content=b"{}", headers={"content-type": "text/plain"})
    check_error(text, 415, "invalid_request_error")
    other = await client.post(MESSAGES, json=message_body() | {"model": "other"})
    check_error(other, 404, "not_found_error")
    broken = await client.post(MESSAGES, content=b"{", headers={"content-type": "application/json"})
    check_error(broken, 400, "invalid_request_error")


async def test_a_receipt_and_its_path(app: ServedApp, client: httpx.AsyncClient) -> None:
    answer = await asked(client, message_body())
    rid = app.door.requests[0].rid
    app.door.receipts[rid] = {"tenant": "default", "id": rid}
    assert (await client.get(f"/v1/baton/requests/{answer['id']}")).json()["id"] == rid


async def test_a_client_that_leaves_ends_it(app: ServedApp, client: httpx.AsyncClient) -> None:
    never = asyncio.Event()

    def script(_: GenerateRequest) -> Sequence[Step]:
        return [delta((70,)), never]

    app.door.script = script
    async with client.stream("POST", MESSAGES, json=message_body(stream=True)) as response:
        async for line in response.aiter_lines():
            if "content_block_delta" in line:
                break
    async with asyncio.timeout(5):
        await app.door.was_cancelled.wait()
