"""What the request line and the headers decide: size, media type, method, path, ids, time limit.

The failure guarded: reading what is refused anyway, taking another encoding for JSON, an id or
a limit of the client's choosing, answers out of order.
"""

import asyncio
import json
import math
from collections.abc import AsyncIterator

import httpx
import psutil
import pytest

from tests.integration.http.raw_client import (
    JSON_HEADER,
    LIMIT_S,
    connection,
    exchange,
    head_bytes,
    read_answer,
    request_bytes,
)
from tests.integration.http.refusals import JSON_TYPE, Refusals, check_error
from tests.support.cases.http_bodies import CHAT, TEXT, chat_body, text_body
from tests.support.fakes.served_app import ServedApp
from tests.support.measured import Measured

pytestmark = pytest.mark.anyio
MIB = 2**20
POST_PATHS = [CHAT, TEXT, "/tokenize", "/detokenize"]
BODY = json.dumps(chat_body()).encode()


async def test_row_1_a_stated_length_over_the_limit_is_refused_unread(
    app: ServedApp, refusals: Refusals
) -> None:
    length = f"content-length: {app.settings.limits.max_body_bytes + 1}"
    answer = await exchange(app, head_bytes("POST", CHAT, JSON_HEADER, length))
    check_error(answer.body, answer.headers, 413, "request_too_large")
    assert answer.headers["connection"] == "close"
    await refusals.check_serves()


@pytest.mark.parametrize("chunked", [False, True], ids=["row-1", "row-2"])
async def test_a_client_that_sends_first_still_reads_the_413(
    app: ServedApp, client: httpx.AsyncClient, chunked: bool
) -> None:
    size = app.settings.limits.max_body_bytes + 1

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(size // 65536 + 1):
            yield b" " * 65536

    content = chunks() if chunked else b" " * size
    response = await client.post(CHAT, content=content, headers=JSON_TYPE)
    assert response.status_code == 413
    check_error(response.content, response.headers, 413, "request_too_large")
    assert app.door.requests == []


async def test_row_2_an_endless_chunked_body_costs_no_memory(
    app: ServedApp, refusals: Refusals, measured: Measured
) -> None:
    """The client never stops sending: it is answered, then cut off."""
    piece = b"10000\r\n" + b" " * 65536 + b"\r\n"
    process = psutil.Process()
    before_bytes = process.memory_info().rss
    most_bytes = 0
    async with connection(app) as (_, writer):
        writer.write(head_bytes("POST", CHAT, JSON_HEADER, "transfer-encoding: chunked"))
        with pytest.raises(ConnectionError):
            async with asyncio.timeout(LIMIT_S):
                while True:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)
                    most_bytes = max(most_bytes, process.memory_info().rss)
    measured.at_most("memory grew by", (most_bytes - before_bytes) / MIB, 8, "MiB")
    await refusals.check_serves()


@pytest.mark.parametrize("path", POST_PATHS)
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("text/plain", id="row-10-text"),
        pytest.param("application/x-www-form-urlencoded", id="row-10-form"),
        pytest.param("multipart/form-data; boundary=x", id="row-10-multipart"),
        pytest.param("", id="row-10-empty"),
        pytest.param(None, id="row-10-missing"),
        pytest.param("application/json; charset=utf-16", id="row-11-utf16"),
        pytest.param("application/json;Charset=LATIN-1", id="row-11-latin1"),
        pytest.param('application/json; charset="iso-8859-1"', id="row-11-quoted"),
    ],
)
async def test_rows_10_11_other_media_types(
    refusals: Refusals, path: str, kind: str | None
) -> None:
    headers = {} if kind is None else {"content-type": kind}
    refused = await refusals.post(
        BODY, "unsupported_media_type", status=415, path=path, headers=headers
    )
    assert "content-type: application/json" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    "kind",
    [
        "application/json",
        "Application/JSON",
        "application/json; charset=utf-8",
        'application/json;charset="UTF-8"',
        "application/json; x=y",
    ],
)
async def test_rows_10_11_json_in_utf8_is_read(client: httpx.AsyncClient, kind: str) -> None:
    response = await client.post(CHAT, content=BODY, headers={"content-type": kind})
    assert response.status_code == 200


@pytest.mark.parametrize("path", POST_PATHS)
async def test_row_12_a_compressed_body_is_not_touched(refusals: Refusals, path: str) -> None:
    """A gzip bomb's head; what follows would make 10 GiB."""
    bomb = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff" + b"\x00" * 5000
    for encoding in ("gzip", "br", "identity, deflate"):
        headers = {**JSON_TYPE, "content-encoding": encoding}
        await refusals.post(bomb, "unsupported_encoding", status=415, path=path, headers=headers)


async def test_row_12_identity_is_no_compression(client: httpx.AsyncClient) -> None:
    headers = {**JSON_TYPE, "content-encoding": "identity"}
    assert (await client.post(CHAT, content=BODY, headers=headers)).status_code == 200


async def test_row_13_no_continue_for_what_is_too_large(app: ServedApp, refusals: Refusals) -> None:
    length = f"content-length: {app.settings.limits.max_body_bytes + 1}"
    head = head_bytes("POST", CHAT, JSON_HEADER, length, "expect: 100-continue")
    answer = await exchange(app, head)  # `exchange` reads the first answer: 100 would be it
    check_error(answer.body, answer.headers, 413, "request_too_large")
    await refusals.check_serves()


async def test_row_13_continue_for_what_fits(app: ServedApp) -> None:
    head = head_bytes(
        "POST", CHAT, JSON_HEADER, f"content-length: {len(BODY)}", "expect: 100-continue"
    )
    async with connection(app) as (reader, writer):
        writer.write(head)
        async with asyncio.timeout(LIMIT_S):
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(BODY)
        assert (await read_answer(reader)).status == 200


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE"])
@pytest.mark.parametrize("path", POST_PATHS)
async def test_row_14_wrong_method(client: httpx.AsyncClient, path: str, method: str) -> None:
    response = await client.request(method, path)
    assert response.status_code == 405
    assert response.headers["allow"] == "POST"
    if method == "HEAD":
        assert response.content == b""
    else:
        check_error(response.content, response.headers, 405, "method_not_allowed")
        assert "POST" in response.json()["error"]["message"]


async def test_row_14_head_where_get_is_and_nothing_else(client: httpx.AsyncClient) -> None:
    for path in ("/health", "/v1/models", "/metrics"):
        head, whole = await client.head(path), await client.get(path)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-type"] == whole.headers["content-type"]
        wrong = await client.post(path, json={})
        assert (wrong.status_code, wrong.headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize(
    "path",
    ["/nothing", "/v1/..%2f..%2fetc", "//v1", "/v1/chat/completions//", "/V1/models", "/%00", "/"],
)
async def test_row_15_unknown_path(app: ServedApp, refusals: Refusals, path: str) -> None:
    """As bytes: a client library would tidy the path."""
    for method in ("GET", "POST"):
        answer = await exchange(app, head_bytes(method, path, "content-length: 0"))
        assert answer.status == 404
        check_error(answer.body, answer.headers, 404, "not_found")
    await refusals.check_serves()


@pytest.mark.parametrize(
    "header",
    [
        pytest.param("x-request-id: abc\r\nx-injected: 1", id="row-17-crlf"),
        pytest.param("x-request-id: abc%0d%0ax-injected: 1", id="row-17-escaped-crlf"),
        pytest.param(f"x-request-id: {'x' * 10_000}", id="row-17-long"),
        pytest.param("x-request-id: a b\xff", id="row-17-bytes"),
        pytest.param("x-request-id: " + "0" * 32, id="row-17-like-ours"),
    ],
)
async def test_row_17_a_client_s_request_id_is_never_ours(app: ServedApp, header: str) -> None:
    answer = await exchange(app, request_bytes(CHAT, chat_body(), header))
    assert answer.status == 200
    assert answer.headers["x-request-id"] == app.door.requests[0].rid
    assert answer.headers["x-request-id"] not in header
    assert "x-injected" not in answer.headers


async def test_row_19_pipelined_requests_are_answered_in_order(app: ServedApp) -> None:
    """One hundred in one piece: streams, whole answers and an error between them."""
    bodies = [text_body([5] * (index + 1), max_tokens=1) for index in range(100)]
    bodies[7] |= {"temperature": -1}
    sent = b"".join(request_bytes(TEXT, body) for body in bodies)
    async with connection(app) as (reader, writer):
        writer.write(sent)
        answers = [await read_answer(reader) for _ in bodies]
    assert [answer.status for answer in answers] == [200] * 7 + [400] + [200] * 92
    lengths = [
        json.loads(answer.body)["usage"]["prompt_tokens"]
        for answer in answers
        if answer.status == 200
    ]
    assert lengths == [index + 1 for index in range(100) if index != 7]


async def test_row_19_a_half_closed_client_gets_all_its_answers(app: ServedApp) -> None:
    async with connection(app) as (reader, writer):
        writer.write(request_bytes(TEXT, text_body(max_tokens=1)) * 20)
        writer.write_eof()
        async with asyncio.timeout(LIMIT_S):
            received = await reader.read()
    assert received.count(b"HTTP/1.1 200 OK") == 20


@pytest.mark.parametrize(
    "given", ["-1", "0", "NaN", "inf", "1e400", "1_0", "+3", "0x10", "soon", ""]
)
async def test_row_59_bad_time_limits(refusals: Refusals, given: str) -> None:
    headers = {**JSON_TYPE, "x-baton-timeout-s": given}
    response = await refusals.post(BODY, "invalid_value", "x-baton-timeout-s", headers=headers)
    assert response.json()["error"]["message"].startswith("x-baton-timeout-s: must be a number")


@pytest.mark.parametrize("given", ["1e300", "2.5", None])
async def test_row_59_good_time_limits(
    app: ServedApp, client: httpx.AsyncClient, given: str | None
) -> None:
    """Counted from the first byte; without one there is none."""
    headers = {} if given is None else {"x-baton-timeout-s": given}
    assert (await client.post(CHAT, json=chat_body(), headers=headers)).status_code == 200
    (request,) = app.door.requests
    expected_s = math.inf if given is None else float(given)
    assert request.limit_s == expected_s
    assert request.timeout_s == expected_s or expected_s - 1 < request.timeout_s < expected_s


@pytest.mark.parametrize("given", ["", "k" * 256, "k" * 300, "two words", "tab\tkey"])
async def test_row_81_bad_idempotency_keys(refusals: Refusals, given: str) -> None:
    headers = {**JSON_TYPE, "idempotency-key": given}
    response = await refusals.post(BODY, "invalid_value", "idempotency-key", headers=headers)
    assert "1 to 255 visible ASCII characters" in response.json()["error"]["message"]


async def test_row_81_an_idempotency_key_is_sent_once(app: ServedApp) -> None:
    twice = request_bytes(CHAT, chat_body(), "idempotency-key: a\r\nidempotency-key: a")
    answer = await exchange(app, twice)
    check_error(answer.body, answer.headers, 400, "invalid_value", "idempotency-key")
    assert app.door.requests == []


async def test_row_81_what_is_recorded_of_a_key_tells_requests_apart(
    app: ServedApp, client: httpx.AsyncClient
) -> None:
    """The same client's same words twice; another key, another body, another path; no key."""
    sent = [
        (CHAT, chat_body(), "a"),
        (CHAT, chat_body(), "a"),
        (CHAT, chat_body(), "k" * 255),
        (CHAT, chat_body(max_tokens=3), "a"),
        (TEXT, text_body(), "a"),
        (CHAT, chat_body(), None),
    ]
    for path, body, key in sent:
        headers = {} if key is None else {"Idempotency-Key": key}
        assert (await client.post(path, json=body, headers=headers)).status_code == 200
    first, again, other_key, other_body, other_path, without = [
        request.client_key for request in app.door.requests
    ]
    assert first is not None and first == again
    assert other_key is not None and other_key.name != first.name
    assert other_key.body == first.body
    for other in (other_body, other_path):
        assert other is not None and other.name == first.name and other.body != first.body
    assert without is None
    assert "a" not in (first.name, first.body)
