"""Text work through real sockets: bounded, under the deadline, and only for whoever is there.

The failure guarded (B11): texts that nobody waits for any more make honest requests late. The
text processes are stopped here, so that a text in work stays there.
"""

import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
from tokenizers import Tokenizer

from services.gateway.prompt.text_work import text_line
from services.gateway.prompt.text_work.text_pool import THREAD_BODY_BYTES
from tests.integration.http.raw_client import (
    JSON_HEADER,
    connection,
    exchange,
    head_bytes,
    read_answer,
)
from tests.integration.http.refusals import check_error
from tests.support.cases.http_bodies import CHAT, TEXT
from tests.support.fakes.served_app import ServedApp, serve_app

pytestmark = [pytest.mark.anyio, pytest.mark.clock]
SOON_S = 4.0
"""a new text process included, on a busy machine; a stopped one is given up after 10 s"""


def text_bytes(num_bytes: int, *headers: str) -> bytes:
    """A /tokenize of little work and `num_bytes` bytes."""
    content = json.dumps({"prompt": "hello"}).encode().ljust(num_bytes)
    return head_bytes(
        "POST", "/tokenize", JSON_HEADER, f"content-length: {num_bytes}", *headers
    ) + (content)


LARGE = THREAD_BODY_BYTES + 1
HUGE = text_line.HUGE_BODY_BYTES + 1


@pytest.fixture
async def stuck(text_directory: Path, tokenizer: Tokenizer) -> AsyncIterator[ServedApp]:
    """A gateway of whose text processes the next to be asked is stopped; the other works."""
    async with serve_app(text_directory, tokenizer) as served:
        assert (await exchange(served, text_bytes(LARGE))).status == 200
        (only,) = text_processes()
        only.suspend()
        assert (await exchange(served, text_bytes(LARGE))).status == 200
        yield served
        for process in text_processes():
            process.resume()


def text_processes() -> list[psutil.Process]:
    children = psutil.Process().children()
    return [child for child in children if any("text_worker" in word for word in child.cmdline())]


async def test_texts_of_clients_that_left_hold_up_nobody(stuck: ServedApp) -> None:
    for _ in range(10):
        async with connection(stuck) as (_, writer):
            writer.write(text_bytes(HUGE))
            await writer.drain()
    began_s = time.monotonic()
    assert (await exchange(stuck, text_bytes(LARGE))).status == 200
    assert (await exchange(stuck, text_bytes(HUGE))).status == 200
    assert time.monotonic() - began_s < SOON_S


async def test_the_deadline_counts_text_work_and_the_body(stuck: ServedApp) -> None:
    began_s = time.monotonic()
    late = await exchange(stuck, text_bytes(LARGE, "x-baton-timeout-s: 0.3"))
    assert time.monotonic() - began_s < SOON_S
    check_error(late.body, late.headers, 504, "deadline_exceeded")
    assert "after 0.3 s" in late.error["message"]
    for path in (CHAT, TEXT, "/tokenize"):
        async with connection(stuck) as (reader, writer):
            length = "content-length: 100"
            writer.write(head_bytes("POST", path, JSON_HEADER, length, "x-baton-timeout-s: 0.1"))
            answer = await read_answer(reader)
            check_error(answer.body, answer.headers, 504, "deadline_exceeded")
            assert answer.headers["connection"] == "close"
    assert (await exchange(stuck, text_bytes(LARGE))).status == 200


async def test_a_line_that_waits_too_long_is_refused(
    stuck: ServedApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the time to come back; what is not huge has a line of its own."""
    monkeypatch.setattr(text_line, "WAIT_LIMIT_S", 1.0)
    async with connection(stuck) as (_, writer):
        writer.write(text_bytes(3 * HUGE))
        await writer.drain()
        status = 0
        while status != 503:  # the first one has not arrived yet, or this one waits behind it
            refused = await exchange(stuck, text_bytes(3 * HUGE, "x-baton-timeout-s: 0.3"))
            status = refused.status
        check_error(refused.body, refused.headers, 503, "overloaded")
        assert int(refused.headers["retry-after"]) >= 2
        assert (await exchange(stuck, text_bytes(LARGE))).status == 200


async def test_a_text_that_cannot_fit_is_refused_by_its_bytes(app: ServedApp) -> None:
    """As a prompt is, in /tokenize and /detokenize too, before any work: these count texts far
    beyond the context, but not any text."""
    content = "the " * 1_000_000
    bodies = [{"prompt": content}, {"messages": [{"role": "user", "content": content}]}]
    for path, body in [*(("/tokenize", body) for body in bodies), ("/detokenize", {})]:
        sent = json.dumps(body or {"tokens": [5] * 40_000}).encode()
        head = head_bytes("POST", path, JSON_HEADER, f"content-length: {len(sent)}")
        answer = await exchange(app, head + sent)
        check_error(answer.body, answer.headers, 400, "context_length_exceeded")
