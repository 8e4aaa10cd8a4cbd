"""What tests of answers with several choices read and send."""

import asyncio
import contextlib
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import httpx

from tests.support.cases.http_bodies import events_of
from tests.support.fakes.served_app import ServedApp, Step, delta
from tests.support.models.text_models import END


def say(app: ServedApp, text: str, num_logprobs: int = 1) -> list[Step]:
    """A script of one delta per token, and EOS."""
    ids = app.tokenizer.encode(text, add_special_tokens=False).ids
    steps: list[Step] = [delta((token,), None, num_logprobs) for token in ids]
    end = app.tokenizer.token_to_id(END)
    assert end is not None
    return [*steps, delta((end,), "stop", num_logprobs)]


async def post(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    response = await client.post(path, json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def stream(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> list[Any]:
    response = await client.post(path, json=body | {"stream": True})
    assert response.status_code == 200, response.text
    return events_of(response.text)


def texts_of(events: Sequence[dict[str, Any]]) -> dict[int, str]:
    """Index -> text of a stream's choices, chat or completions."""
    texts: dict[int, str] = defaultdict(str)
    for choice in _choices(events):
        texts[choice["index"]] += choice.get("text") or choice.get("delta", {}).get("content") or ""
    return dict(texts)


def finish_reasons(events: Sequence[dict[str, Any]]) -> dict[int, list[str]]:
    """Index -> every finish reason that was told."""
    reasons: dict[int, list[str]] = defaultdict(list)
    for choice in _choices(events):
        if choice["finish_reason"] is not None:
            reasons[choice["index"]].append(choice["finish_reason"])
    return dict(reasons)


def request_bytes(path: str, body: dict[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
        f"content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


@contextlib.asynccontextmanager
async def connection(
    app: ServedApp,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(*app.address)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  (the condition is the door's)
            await asyncio.sleep(0.001)


def _choices(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [choice for event in events for choice in event["choices"]]
