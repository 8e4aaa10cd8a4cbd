"""Clients that leave, stall or half-close, failures of the engine side, and overload."""

import asyncio
import json
import logging
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from tokenizers import Tokenizer

from services.gateway.owner.generation import Delta, GenerateRequest
from services.gateway.routes import generate
from shared.errors import AttemptError, OverloadedError
from tests.integration.http.loop_lag import LoopLag
from tests.integration.http.raw_client import connection, request_bytes
from tests.integration.http.refusals import JSON_TYPE, check_error
from tests.support.cases.http_bodies import CHAT, TEXT, chat_body, events_of, text_body, text_of
from tests.support.fakes.served_app import ServedApp, Step, serve_app
from tests.support.measured import Measured
from tests.support.settings import settings_with

pytestmark = pytest.mark.anyio
PROMPT_S = 2.0
"""how soon a cancel must arrive; it takes milliseconds, the rest is a busy machine"""
NUM_TRIES = 10
MAX_LAG_S = 0.05
FAILURE = AttemptError("all attempts failed", code="attempts_exhausted", status=502)


def then_wait(ids: Sequence[int], forever: asyncio.Event) -> list[Step]:
    """Some tokens, then nothing until the event."""
    return [*(Delta((token,), ()) for token in ids), forever]


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize(
    ("stream", "broken"),
    [(True, "choice_texts"), (True, "StreamResponse"), (False, "WholeResponse")],
)
async def test_an_error_of_ours_before_the_answer_leaves_no_choice_running(
    app: ServedApp,
    client: httpx.AsyncClient,
    monkeypatch: pytest.MonkeyPatch,
    n: int,
    stream: bool,
    broken: str,
) -> None:
    """Nobody would read or cancel them: they would compute to their last token."""

    def planted(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(generate, broken, planted)
    app.door.script = lambda _: [asyncio.Event()]
    response = await client.post(CHAT, json=chat_body(n=n, stream=stream))
    assert (response.status_code, response.json()["error"]["code"]) == (500, "internal_error")
    left = {request.rid for request in app.door.requests} - set(app.door.cancelled)
    assert not left


@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "whole"])
@pytest.mark.parametrize("num_tokens", [0, 3], ids=["before-token-1", "after-token-1"])
async def test_a_client_that_leaves_cancels_and_leaves_no_line_in_the_log(
    app: ServedApp,
    client: httpx.AsyncClient,
    caplog: pytest.LogCaptureFixture,
    stream: bool,
    num_tokens: int,
) -> None:
    caplog.set_level(logging.INFO, "services")
    forever = asyncio.Event()
    app.door.script = lambda _: then_wait([70] * num_tokens, forever)
    async with connection(app) as (reader, writer):
        writer.write(request_bytes(CHAT, chat_body(stream=stream)))
        if stream and num_tokens:
            await reader.readuntil(b"assistant")
        else:
            await until(lambda: bool(app.door.requests))
    async with asyncio.timeout(PROMPT_S):
        await app.door.was_cancelled.wait()
    assert app.door.cancelled == [app.door.requests[0].rid]
    assert (await client.get("/health")).status_code == 200
    assert [record for record in caplog.records if record.name.startswith("services")] == []


@pytest.mark.parametrize("stream", [True, False], ids=["row-88-streaming", "row-88-whole"])
async def test_row_88_a_half_closed_client_is_served(app: ServedApp, stream: bool) -> None:
    go_on = asyncio.Event()
    ids = app.tokenizer.encode("hello world").ids

    def script(_: GenerateRequest) -> Sequence[Step]:
        last = Delta(tuple(ids[2:]), (), "length")
        return (
            [*then_wait(ids[:2], go_on), last]
            if stream
            else [go_on, Delta(tuple(ids[:2]), ()), last]
        )

    app.door.script = script
    async with connection(app) as (reader, writer):
        writer.write(request_bytes(TEXT, text_body(stream=stream)))
        writer.write_eof()
        await until(lambda: bool(app.door.requests))
        # Longer than the first probes, so that they are really sent.
        await asyncio.sleep(0.3)
        go_on.set()
        async with asyncio.timeout(10):
            answer = (await reader.read()).decode()
    assert "hello" in answer or '"h' in answer
    assert app.door.cancelled == []
    final = answer[answer.index("HTTP/1.1 200 OK") :]
    content = final.partition("\r\n\r\n")[2]
    if stream:
        assert content.rstrip().endswith("0")
        assert "data: [DONE]" in content
    else:
        assert json.loads(content)["choices"][0]["text"] == "hello world"


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_row_89_failure_after_the_first_event(
    app: ServedApp, client: httpx.AsyncClient, path: str
) -> None:
    ids = app.tokenizer.encode("hello").ids
    app.door.script = lambda _: [Delta(tuple(ids), ()), None, FAILURE]
    body = chat_body(stream=True) if path == CHAT else text_body(stream=True)
    response = await client.post(path, json=body)
    assert response.status_code == 200
    events = events_of(response.text)
    assert text_of(events) == "hello"
    headers = {**response.headers, "content-type": "application/json"}
    check_error(json.dumps(events[-1]), headers, 502, "attempts_exhausted")
    assert "[DONE]" not in events


@pytest.mark.parametrize("stream", [True, False])
async def test_failure_before_the_first_byte_has_its_own_status(
    app: ServedApp, client: httpx.AsyncClient, stream: bool
) -> None:
    app.door.script = lambda _: [None, FAILURE]
    response = await client.post(CHAT, json=chat_body(stream=stream))
    assert response.status_code == 502
    assert response.json()["error"]["code"] == "attempts_exhausted"


async def test_failure_of_a_whole_answer_after_tokens_is_an_error(
    app: ServedApp, client: httpx.AsyncClient
) -> None:
    app.door.script = lambda _: [Delta((70,), ()), None, FAILURE]
    assert (await client.post(CHAT, json=chat_body())).status_code == 502


@pytest.mark.parametrize("stream", [True, False])
async def test_a_generation_that_just_ends_is_never_a_short_answer(
    app: ServedApp, client: httpx.AsyncClient, stream: bool
) -> None:
    app.door.script = lambda _: [Delta((70,), ()), None]
    response = await client.post(CHAT, json=chat_body(stream=stream))
    assert "internal_error" in response.text
    assert "[DONE]" not in response.text


@pytest.mark.parametrize(
    ("status", "kind", "code"),
    [
        pytest.param(429, "rate_limit_error", "rate_limit_exceeded", id="row-85"),
        pytest.param(503, "server_error", "overloaded", id="row-86"),
    ],
)
@pytest.mark.parametrize("late", [False, True], ids=["at-once", "admission"])
async def test_overload(
    app: ServedApp, client: httpx.AsyncClient, status: int, kind: str, code: str, late: bool
) -> None:
    error = OverloadedError("full", retry_after_s=2.3, status=status)
    if late:
        app.door.script = lambda _: [error]
    else:
        app.door.refusal = error
    response = await client.post(CHAT, json=chat_body(stream=True))
    assert response.status_code == status
    assert response.headers["retry-after"] == "3"
    assert (response.headers.get("connection") == "close") == (status == 503)
    check_error(response.content, response.headers, status, code)
    assert response.json()["error"]["type"] == kind
    assert response.json()["error"]["message"] == "full; try again in 3 s"


async def test_row_86_a_request_ended_by_the_gateway_s_own_end(
    app: ServedApp, client: httpx.AsyncClient
) -> None:
    stopping = AttemptError("the gateway is shutting down", code="gateway_stopping", status=503)
    app.door.script = lambda _: [None, stopping]
    response = await client.post(CHAT, json=chat_body(stream=True))
    check_error(response.content, response.headers, 503, "gateway_stopping")
    assert (response.headers["retry-after"], response.headers["connection"]) == ("1", "close")


async def test_a_stalled_reader_is_cut_and_cancelled(
    text_directory: Path, tokenizer: Tokenizer
) -> None:
    """It reads nothing: the buffers fill, the queue stays bounded, the request ends."""
    settings = settings_with(slow_reader_s=0.4)
    async with serve_app(text_directory, tokenizer, settings) as app:
        ids = tuple(app.tokenizer.encode("hello world ").ids) * 200
        app.door.script = lambda _: [Delta(ids, ())] * 4000
        with socket.socket() as stalled:
            stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stalled.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(stalled, app.address)
            await loop.sock_sendall(stalled, request_bytes(TEXT, text_body(stream=True)))
            async with asyncio.timeout(20):
                await app.door.was_cancelled.wait()
            async with httpx.AsyncClient(base_url=app.url) as other:
                assert (await other.get("/health")).status_code == 200
            assert app.door.generations[0].num_yielded_tokens < 4000 * len(ids), (
                "tokens are not pulled while nobody reads"
            )
            async with asyncio.timeout(10):
                end = b""
                while part := await loop.sock_recv(stalled, 65536):
                    end = (end + part)[-100:]
            assert b"[DONE]" not in end
            assert not end.endswith(b"0\r\n\r\n")


async def test_row_64_a_long_text_does_not_block_the_loop(
    app: ServedApp, client: httpx.AsyncClient, measured: Measured
) -> None:
    """A megabyte of one letter: refused after a second's computing at most, while the loop keeps
    turning.

    The best of several tries counts, because other processes share this machine's cores; a loop
    that waits for the text is late in all of them."""
    content = json.dumps(chat_body("a" * 1_000_000)).encode()
    # The first one starts the process that reads large bodies.
    await client.post(CHAT, content=content, headers=JSON_TYPE)
    lags_s: list[float] = []
    cpu_s: list[float] = []
    for _ in range(NUM_TRIES):
        lag, begin_s = LoopLag(), cpu_time_s()
        async with lag.measured():
            response = await client.post(CHAT, content=content, headers=JSON_TYPE)
        assert response.status_code == 400
        assert response.json()["error"]["code"] == "context_length_exceeded"
        lags_s.append(lag.longest_s)
        cpu_s.append(cpu_time_s() - begin_s)
        if lags_s[-1] < MAX_LAG_S:
            break
    measured.at_most("CPU time until it is refused", min(cpu_s), 1.0, "s")
    measured.at_most("the loop did not turn for", min(lags_s), MAX_LAG_S, "s")


def cpu_time_s() -> float:
    """Of this process and all that it has started."""
    own = psutil.Process()
    times = [process.cpu_times() for process in (own, *own.children(recursive=True))]
    return sum(time.user + time.system for time in times)


async def until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  (the condition is the door's)
            await asyncio.sleep(0.001)


async def test_the_lag_probe_sees_a_blocked_loop() -> None:
    lag = LoopLag()
    async with lag.measured():
        time.sleep(0.1)  # noqa: ASYNC251  (the fault itself)
        await asyncio.sleep(0.01)
    assert lag.longest_s >= 0.05
