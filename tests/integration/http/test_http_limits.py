"""The connection's own limits: headers, framing, slow clients, number of connections.

The failure guarded: what never becomes a request, but holds memory, a descriptor or the event
loop. Time limits are shortened here; `test_the_limits_in_use` says what they are.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from services.gateway.http.limits import HttpLimits
from services.gateway.http.server import http_limits
from shared.settings.groups import LimitSettings
from tests.integration.http.loop_lag import LoopLag
from tests.integration.http.raw_client import (
    JSON_HEADER,
    LIMIT_S,
    connection,
    exchange,
    head_bytes,
    read_answer,
    request_bytes,
)
from tests.integration.http.refusals import Refusals, check_error
from tests.support.cases.http_bodies import CHAT, COUNT, MESSAGES, TEXT, chat_body, text_body
from tests.support.fakes.served_app import ServedApp, serve_app

pytestmark = [pytest.mark.anyio, pytest.mark.clock]
SHORT_S = 0.15
NUM_CONNECTIONS = 40
BODY = json.dumps(chat_body()).encode()
LENGTH = f"content-length: {len(BODY)}"
CHUNKED = "transfer-encoding: chunked"


@pytest.fixture(scope="module")
async def hurried_app(
    text_directory: Path, tokenizer: Tokenizer, anyio_backend: object
) -> AsyncIterator[ServedApp]:
    """A gateway that waits for nobody."""
    limits = HttpLimits(header_s=SHORT_S, body_s=SHORT_S, num_connections=NUM_CONNECTIONS)
    async with serve_app(text_directory, tokenizer, limits=limits) as served:
        served.answer("hello world")
        yield served


def test_the_limits_in_use() -> None:
    limits = http_limits(LimitSettings())
    assert (limits.header_bytes, limits.num_headers) == (16 * 1024, 100)
    assert (limits.header_s, limits.body_s) == (10.0, 30.0)
    assert 100 <= limits.num_connections <= 4096


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param(["x-big: " + "x" * 65536], id="row-3-large"),
        pytest.param([f"x-{index}: 1" for index in range(10_000)], id="row-3-many"),
        pytest.param([f"x-{index}: 1" for index in range(101)], id="row-3-101"),
        pytest.param(["x-a: " + "x" * 9000, "x-b: " + "x" * 9000], id="row-3-together"),
    ],
)
async def test_row_3_large_headers(app: ServedApp, refusals: Refusals, headers: list[str]) -> None:
    answer = await exchange(app, head_bytes("POST", CHAT, JSON_HEADER, LENGTH, *headers) + BODY)
    check_error(answer.body, answer.headers, 431, "header_too_large")
    assert answer.headers["connection"] == "close"
    await refusals.check_serves()


async def test_row_3_headers_without_an_end(app: ServedApp) -> None:
    """Refused while they still come, not when they are complete."""
    async with connection(app) as (reader, writer):
        writer.write(head_bytes("POST", CHAT)[:-2] + b"x-big: ")
        answering = asyncio.ensure_future(read_answer(reader))
        while not answering.done():
            writer.write(b"x" * 4096)
            await asyncio.sleep(0.001)
        answer = await answering
    check_error(answer.body, answer.headers, 431, "header_too_large")


async def test_row_3_what_fits_is_served(app: ServedApp) -> None:
    headers = [f"x-{index}: {'x' * 100}" for index in range(95)]
    answer = await exchange(app, request_bytes(CHAT, chat_body("long " * 20), *headers))
    assert answer.status == 200


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"POST /", id="row-4-in-the-line"),
        pytest.param(b"POST / HTTP/1.1\r\nhost: x\r\nx-a: ", id="row-4-in-a-header"),
        pytest.param(head_bytes("POST", CHAT, JSON_HEADER, LENGTH) + BODY[:5], id="row-5"),
        pytest.param(head_bytes("POST", "/nothing", LENGTH) + BODY[:5], id="row-5-early-answer"),
    ],
)
async def test_rows_4_5_slow_clients(hurried_app: ServedApp, sent: bytes) -> None:
    """A byte now and then does not help."""
    async with connection(hurried_app) as (reader, writer):
        writer.write(sent)
        answering = asyncio.ensure_future(read_answer(reader))
        num_sent = 0
        while not answering.done():
            writer.write(b"a")
            num_sent += 1
            await asyncio.sleep(SHORT_S / 5)
        answer = await answering
        early = b"nothing" in sent
        assert answer.status == (404 if early else 408)
        check_error(
            answer.body, answer.headers, answer.status, "not_found" if early else "request_timeout"
        )
        async with asyncio.timeout(LIMIT_S):
            assert await reader.read() == b""
    assert early or num_sent > 2
    assert hurried_app.door.requests == []


async def test_row_4_a_connection_that_never_asks_is_closed(hurried_app: ServedApp) -> None:
    async with connection(hurried_app) as (reader, writer):
        async with asyncio.timeout(LIMIT_S):
            assert await reader.read() == b""
    async with connection(hurried_app) as (reader, writer):
        with pytest.raises(ConnectionError):
            async with asyncio.timeout(LIMIT_S):
                while True:
                    writer.write(b"\r\n")
                    await writer.drain()
                    await asyncio.sleep(SHORT_S / 5)


async def test_rows_4_5_an_answer_that_takes_long_is_no_slow_client(
    hurried_app: ServedApp,
) -> None:
    """Nor is a connection kept open between two requests, or the head of the next one."""
    go_on = asyncio.Event()
    script = hurried_app.door.script
    hurried_app.door.script = lambda request: [go_on, *script(request)]
    whole = request_bytes(CHAT, chat_body())
    async with connection(hurried_app) as (reader, writer):
        writer.write(whole + whole[:20])
        await asyncio.sleep(3 * SHORT_S)
        go_on.set()
        assert (await read_answer(reader)).status == 200
        writer.write(whole[20:])
        assert (await read_answer(reader)).status == 200
        await asyncio.sleep(3 * SHORT_S)
        writer.write(whole)
        assert (await read_answer(reader)).status == 200
    hurried_app.door.script = script
    hurried_app.door.requests.clear()


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param([LENGTH, CHUNKED], id="row-6"),
        pytest.param([CHUNKED, LENGTH], id="row-6-other-order"),
        pytest.param([LENGTH, "content-length: 5"], id="row-7-two"),
        pytest.param(["content-length: -5"], id="row-7-negative"),
        pytest.param(["content-length: +5"], id="row-7-plus"),
        pytest.param(["content-length: 5, 5"], id="row-7-list"),
        pytest.param([f"content-length: {'9' * 30}"], id="row-7-huge"),
        pytest.param(["transfer-encoding: gzip"], id="row-6-other-coding"),
    ],
)
async def test_rows_6_7_contradicting_lengths(
    app: ServedApp, refusals: Refusals, headers: list[str]
) -> None:
    smuggled = request_bytes(TEXT, text_body())
    answer = await exchange(app, head_bytes("POST", CHAT, JSON_HEADER, *headers) + BODY + smuggled)
    check_error(answer.body, answer.headers, 400, "bad_framing")
    assert app.door.requests == []
    await refusals.check_serves()


async def test_row_8_a_body_cut_by_the_close_is_dropped(app: ServedApp) -> None:
    async with connection(app) as (reader, writer):
        writer.write(request_bytes(TEXT, text_body())[:-3])
        writer.write_eof()
        async with asyncio.timeout(LIMIT_S):
            assert await reader.read() == b""
    assert app.door.requests == []


async def test_row_9_a_bad_chunk_size(app: ServedApp, refusals: Refusals) -> None:
    head = head_bytes("POST", CHAT, JSON_HEADER, CHUNKED)
    answer = await exchange(app, head + b"5\r\nhello\r\nZZ\r\n")
    check_error(answer.body, answer.headers, 400, "bad_framing")
    assert app.door.requests == []
    await refusals.check_serves()


async def test_row_9_a_million_one_byte_chunks(app: ServedApp) -> None:
    """Their framing counts: refused after 4 MiB on the wire, without holding up the loop."""
    lag = LoopLag()
    piece = b"1\r\nx\r\n" * 5000
    async with connection(app) as (reader, writer), lag.measured():
        writer.write(head_bytes("POST", CHAT, JSON_HEADER, CHUNKED))
        answering = asyncio.ensure_future(read_answer(reader))
        num_pieces = 0
        while not answering.done() and num_pieces < 200:
            writer.write(piece)
            num_pieces += 1
            await writer.drain()
            await asyncio.sleep(0)
        answer = await answering
    check_error(answer.body, answer.headers, 413, "request_too_large")
    assert lag.longest_s < 1.0


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", 400, "bad_request", id="row-16-no-host"),
        pytest.param(
            b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", 400, "bad_request", id="row-16-hosts"
        ),
        pytest.param(b"GET /\r\n\r\n", 400, "bad_request", id="row-16-http-0.9"),
        pytest.param(
            b"CONNECT a.test:443 HTTP/1.1\r\nhost: a.test\r\n\r\n",
            405,
            "method_not_allowed",
            id="row-16-connect",
        ),
        pytest.param(
            head_bytes("GET", "/health", "connection: upgrade, http2-settings", "upgrade: h2c"),
            400,
            "bad_request",
            id="row-16-h2c",
        ),
        pytest.param(
            head_bytes("GET", "/health", "connection: Upgrade", "upgrade: websocket"),
            400,
            "bad_request",
            id="row-16-websocket",
        ),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "bad_request", id="row-16-http-2"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01", 400, "bad_request", id="row-16-tls"),
        pytest.param(b"NOT HTTP AT ALL\r\n\r\n", 400, "bad_request", id="row-16-noise"),
    ],
)
async def test_row_16_not_a_request(
    app: ServedApp, refusals: Refusals, sent: bytes, status: int, code: str
) -> None:
    answer = await exchange(app, sent)
    check_error(answer.body, answer.headers, status, code)
    assert answer.headers["connection"] == "close"
    assert ("allow" in answer.headers) == (status == 405)
    await refusals.check_serves()


@pytest.mark.parametrize(
    ("sent", "status", "kind"),
    [
        pytest.param(
            head_bytes("POST", MESSAGES, JSON_HEADER, LENGTH) + BODY[:5],
            408,
            "timeout_error",
            id="slow-body",
        ),
        pytest.param(
            head_bytes("POST", f"{COUNT}?beta=true", JSON_HEADER, CHUNKED) + b"ZZ\r\n",
            400,
            "invalid_request_error",
            id="bad-chunk",
        ),
        pytest.param(
            head_bytes("POST", MESSAGES, "connection: upgrade", "upgrade: h2c"),
            400,
            "invalid_request_error",
            id="upgrade",
        ),
        pytest.param(
            head_bytes("POST", MESSAGES, f"x-a: {'a' * 20_000}"),
            431,
            "invalid_request_error",
            id="large-headers",
        ),
    ],
)
async def test_a_connection_refuses_in_the_shape_of_the_path(
    hurried_app: ServedApp, sent: bytes, status: int, kind: str
) -> None:
    answer = await exchange(hurried_app, sent)
    body = json.loads(answer.body)
    assert (answer.status, body["type"], body["error"]["type"]) == (status, "error", kind)
    assert body["request_id"] == answer.headers["x-request-id"]


async def test_a_bad_request_behind_good_ones_waits_for_their_answers(app: ServedApp) -> None:
    good = request_bytes(TEXT, text_body(max_tokens=1))
    for bad in (b"NOT HTTP\r\n\r\n", head_bytes("POST", TEXT, JSON_HEADER, CHUNKED) + b"ZZ\r\n"):
        async with connection(app) as (reader, writer):
            writer.write(good * 3 + bad)
            for _ in range(3):
                assert (await read_answer(reader)).status == 200
            async with asyncio.timeout(LIMIT_S):
                assert await reader.read() == b""


async def test_row_18_the_longest_idle_connection_gives_way(hurried_app: ServedApp) -> None:
    """Whoever fills all places with idle connections shuts nobody out."""
    async with AsyncExitStack() as stack:
        kept = []
        for _ in range(NUM_CONNECTIONS):
            reader, writer = await stack.enter_async_context(connection(hurried_app))
            writer.write(request_bytes(CHAT, chat_body()))
            assert (await read_answer(reader)).status == 200
            kept.append((reader, writer))
        first, second = kept[0][0], kept[1]
        assert (await exchange(hurried_app, request_bytes(CHAT, chat_body()))).status == 200
        async with asyncio.timeout(LIMIT_S):
            assert await first.read() == b""
        second[1].write(request_bytes(CHAT, chat_body()))
        assert (await read_answer(second[0])).status == 200


async def test_row_18_probes_are_answered_where_every_connection_is_busy(
    hurried_app: ServedApp,
) -> None:
    """Others are told to come back, and all within the cap are served as before."""
    go_on = asyncio.Event()
    script = hurried_app.door.script
    hurried_app.door.script = lambda request: [go_on, *script(request)]
    async with AsyncExitStack() as stack:
        kept = []
        for _ in range(NUM_CONNECTIONS):
            reader, writer = await stack.enter_async_context(connection(hurried_app))
            writer.write(request_bytes(CHAT, chat_body()))
            kept.append(reader)
        while len(hurried_app.door.requests) < NUM_CONNECTIONS:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        async with connection(hurried_app) as (reader, writer):
            for path in ("/health", "/ready", "/metrics?all=1", "/health"):
                writer.write(head_bytes("GET", path))
                assert (await read_answer(reader)).status == 200
        refused = await exchange(hurried_app, request_bytes(CHAT, chat_body()))
        check_error(refused.body, refused.headers, 503, "overloaded")
        assert (refused.headers["retry-after"], refused.headers["connection"]) == ("1", "close")
        go_on.set()
        for reader in kept:
            assert (await read_answer(reader)).status == 200
    hurried_app.door.script = script
    hurried_app.door.requests.clear()
