"""A stream that waits says so in comments, or a proxy takes it for dead and cuts it.

The failures guarded: silence for longer than `--keepalive-s`, comments that change the answer or
come in the middle of an event, and a refusal that loses its status to one.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import httpx
import pytest
from tokenizers import Tokenizer

from services.gateway.answer.sse import COMMENT
from services.gateway.owner.generation import GenerateRequest
from shared.errors import AttemptError, BatonError, OverloadedError
from tests.integration.http.shapes.response_events import response_of
from tests.support.cases.http_bodies import (
    CHAT,
    MESSAGES,
    RESPONSES,
    chat_body,
    events_of,
    message_body,
    named_events_of,
    response_body,
    text_of,
)
from tests.support.fakes.served_app import ServedApp, Step, delta, serve_app
from tests.support.settings import settings_with

pytestmark = pytest.mark.anyio
KEEPALIVE_S = 0.05
WAIT_S = 0.4
MARK = COMMENT.decode()


@pytest.fixture(scope="module")
async def running_app(
    text_directory: Path, tokenizer: Tokenizer, anyio_backend: object
) -> AsyncIterator[ServedApp]:
    settings = settings_with(keepalive_s=KEEPALIVE_S)
    async with serve_app(text_directory, tokenizer, settings) as served:
        yield served


def wait_before(app: ServedApp, place: int, *then: BatonError) -> None:
    """An answer of "hello world" that stands still before its token at `place`; what follows it
    there, instead of tokens, is `then`."""
    ids = app.tokenizer.encode("hello world", add_special_tokens=False).ids
    tokens = [delta((token,)) for token in ids[:-1]] + [delta((ids[-1],), "length")]

    def script(_: GenerateRequest) -> Sequence[Step]:
        goes_on = asyncio.Event()
        asyncio.get_running_loop().call_later(WAIT_S, goes_on.set)
        return [*tokens[:place], goes_on, *(then or tokens[place:])]

    app.door.script = script


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("fields", [{}, {"logprobs": True}])
async def test_a_stream_that_waits_gets_comments(
    app: ServedApp, client: httpx.AsyncClient, place: int, fields: dict[str, bool]
) -> None:
    wait_before(app, place)
    response = await client.post(CHAT, json=chat_body(stream=True, **fields))
    assert response.status_code == 200
    said = [part for part in response.text.split("\n\n") if part]
    comments = [part for part in said if not part.startswith("data: ")]
    assert 2 <= len(comments) <= WAIT_S / KEEPALIVE_S
    assert set(comments) == {MARK.strip()}
    assert text_of(events_of(response.text)) == "hello world"
    assert said[-1] == "data: [DONE]"


@pytest.mark.parametrize("place", [0, 1])
async def test_a_message_that_waits_gets_pings_once_it_has_begun(
    app: ServedApp, client: httpx.AsyncClient, place: int
) -> None:
    """Readers want message_start before any other event."""
    wait_before(app, place)
    response = await client.post(MESSAGES, json=message_body(stream=True))
    assert (MARK in response.text) == (place == 0)
    events = named_events_of(response.text)
    assert events[0]["type"] == "message_start"
    num_pings = events.count({"type": "ping"})
    assert num_pings == 0 if place == 0 else 2 <= num_pings <= WAIT_S / KEEPALIVE_S
    deltas = [event["delta"]["text"] for event in events if event["type"] == "content_block_delta"]
    assert "".join(deltas) == "hello world"


async def test_a_message_that_fails_before_it_begins(
    app: ServedApp, client: httpx.AsyncClient
) -> None:
    wait_before(app, 0, AttemptError("it took too long", code="timeout", status=504))
    response = await client.post(MESSAGES, json=message_body(stream=True))
    assert response.status_code == 200
    (event,) = named_events_of(response.text)
    assert event["error"]["type"] == "timeout_error"


async def test_a_response_that_fails_before_it_begins(
    app: ServedApp, client: httpx.AsyncClient
) -> None:
    """Readers want response.created before any other event; comments they skip."""
    wait_before(app, 0, AttemptError("it took too long", code="timeout", status=504))
    response = await client.post(RESPONSES, json=response_body(stream=True))
    assert MARK in response.text
    failed = response_of(named_events_of(response.text))
    assert failed["error"] == {"code": "timeout", "message": "it took too long"}


async def test_a_stream_that_flows_gets_none(app: ServedApp, client: httpx.AsyncClient) -> None:
    response = await client.post(CHAT, json=chat_body(stream=True))
    assert MARK not in response.text


async def test_a_failure_after_a_comment_is_the_streams_last_event(
    app: ServedApp, client: httpx.AsyncClient
) -> None:
    wait_before(app, 0, AttemptError("it took too long", code="timeout", status=504))
    response = await client.post(CHAT, json=chat_body(stream=True))
    assert response.status_code == 200
    (event,) = events_of(response.text.replace(MARK, ""))
    assert event["error"]["code"] == "timeout"


async def test_what_may_still_be_refused_gets_its_own_status(
    app: ServedApp, client: httpx.AsyncClient
) -> None:
    """It is in no backlog yet: Redis takes its time."""
    app.door.accepts = lambda _: False
    wait_before(app, 0, OverloadedError("full", retry_after_s=3.0))
    response = await client.post(CHAT, json=chat_body(stream=True))
    assert (response.status_code, response.headers["retry-after"]) == (429, "3")


async def test_a_whole_answer_has_no_comments(app: ServedApp, client: httpx.AsyncClient) -> None:
    wait_before(app, 2)
    answer = (await client.post(CHAT, json=chat_body())).json()
    assert answer["choices"][0]["message"]["content"] == "hello world"
