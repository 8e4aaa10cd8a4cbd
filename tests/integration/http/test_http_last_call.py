"""A server that is told to stop: what kept connections still bring is answered.

The failure guarded: a client that uses its connection again just as the gateway stops, and reads
that the server disconnected.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from services.gateway.http.limits import HttpLimits
from tests.integration.http.raw_client import LIMIT_S, connection, read_answer, request_bytes
from tests.support.cases.http_bodies import chat_body
from tests.support.fakes.served_app import ServedApp, delta, serve_app

pytestmark = [pytest.mark.anyio, pytest.mark.clock]
LAST_CALL_S = 0.6
ASK = request_bytes("/v1/chat/completions", chat_body())


@pytest.fixture
async def app(
    text_directory: Path, tokenizer: Tokenizer, anyio_backend: object
) -> AsyncIterator[ServedApp]:
    limits = HttpLimits(last_call_s=LAST_CALL_S)
    async with serve_app(text_directory, tokenizer, limits=limits) as served:
        served.answer("hello world")
        yield served


async def stop(app: ServedApp) -> float:
    """Tell it, and return when it takes no new connection."""
    app.server.should_exit = True
    async with asyncio.timeout(LIMIT_S):
        await app.server.stopping.wait()
        await asyncio.sleep(0)
    return time.monotonic()


async def closed(app: ServedApp) -> float:
    """When no connection is open any more."""
    async with asyncio.timeout(LIMIT_S):
        while app.server.has_connections():  # noqa: ASYNC110 -- has no event
            await asyncio.sleep(0.01)
    return time.monotonic()


async def test_a_kept_connection_has_one_more_answer(app: ServedApp) -> None:
    async with connection(app) as (reader, writer):
        writer.write(ASK)
        first = await read_answer(reader)
        await stop(app)
        with pytest.raises(OSError):
            await asyncio.open_connection(*app.address)
        writer.write(ASK)
        last = await read_answer(reader)
        assert (first.status, last.status) == (200, 200)
        assert "connection" not in first.headers
        assert last.headers["connection"] == "close"
        async with asyncio.timeout(LIMIT_S):
            assert await reader.read() == b""
        await closed(app)


async def test_a_client_that_read_a_stream_meanwhile_may_ask_once_more(app: ServedApp) -> None:
    """The stream's head has not said that the connection ends."""
    gate = asyncio.Event()
    app.door.script = lambda _: (delta((65,)), gate, delta((66,), "stop"))
    async with connection(app) as (reader, writer):
        writer.write(request_bytes("/v1/chat/completions", chat_body(stream=True)))
        async with asyncio.timeout(LIMIT_S):
            assert b"connection" not in await reader.readuntil(b"\r\n\r\n")
        await stop(app)
        gate.set()
        async with asyncio.timeout(LIMIT_S):
            await reader.readuntil(b"\r\n0\r\n\r\n")
        app.answer("hello world")
        writer.write(ASK)
        last = await read_answer(reader)
        assert (last.status, last.headers["connection"]) == (200, "close")
        await closed(app)


async def test_an_answer_that_has_not_begun_says_that_it_is_the_last(app: ServedApp) -> None:
    gate = asyncio.Event()
    app.door.script = lambda _: (gate, delta((65,), "stop"))
    async with connection(app) as (reader, writer):
        writer.write(ASK)
        async with asyncio.timeout(LIMIT_S):
            while not app.door.requests:  # noqa: ASYNC110 -- has no event
                await asyncio.sleep(0.01)
        await stop(app)
        gate.set()
        answer = await read_answer(reader)
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        await closed(app)


async def test_a_request_half_sent_is_answered(app: ServedApp) -> None:
    async with connection(app) as (reader, writer):
        writer.write(ASK[:20])
        await asyncio.sleep(0.05)
        await stop(app)
        await asyncio.sleep(1.5 * LAST_CALL_S)
        writer.write(ASK[20:])
        answer = await read_answer(reader)
        assert (answer.status, answer.headers["connection"]) == (200, "close")


@pytest.mark.parametrize("part", [ASK[:20], ASK[:-5]])
async def test_a_request_that_never_comes_whole_is_refused_at_the_end(
    app: ServedApp, part: bytes
) -> None:
    async with connection(app) as (reader, writer):
        writer.write(part)
        await asyncio.sleep(0.05)
        await stop(app)
        app.server.refuse_unfinished()
        answer = await read_answer(reader)
        assert (answer.status, answer.headers["connection"]) == (408, "close")
        refused_s = time.monotonic()
        assert await closed(app) - refused_s < LAST_CALL_S + 0.5


async def test_a_connection_that_stays_idle_is_closed(app: ServedApp) -> None:
    async with connection(app) as (reader, _):
        await asyncio.sleep(0.05)
        stopped_s = await stop(app)
        async with asyncio.timeout(LIMIT_S):
            assert await reader.read() == b""
        closed_s = await closed(app) - stopped_s
        assert LAST_CALL_S - 0.05 <= closed_s < LAST_CALL_S + 0.5


async def test_without_connections_nothing_waits(app: ServedApp) -> None:
    stopped_s = await stop(app)
    assert await closed(app) - stopped_s < 0.2
