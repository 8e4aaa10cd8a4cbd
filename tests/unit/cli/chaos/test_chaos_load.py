"""The load of a campaign against gateways that cut, refuse and answer as they are told to."""

import asyncio
import json
import math
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from services.cli.chaos.asks import Ask, make_asks
from services.cli.chaos.fault import until
from services.cli.chaos.load import Asked, Load

pytestmark = pytest.mark.anyio

ASK = Ask((101, 102), 2, None)


def event(text: str, num: int, reason: str | None = None) -> str:
    usage = {"completion_tokens": num}
    choice = {"text": text, "finish_reason": reason}
    return f"data: {json.dumps({'choices': [choice], 'usage': usage})}\n\n"


WHOLE = event("a", 1) + event("b", 2, "length") + "data: [DONE]\n\n"


def answer(status: int, body: str, *, more: int = 0, headers: str = "") -> bytes:
    """`more`: bytes that are announced and never come."""
    length = len(body) + more
    head = f"HTTP/1.1 {status} X\r\ncontent-length: {length}\r\nx-request-id: r{status}\r\n"
    return f"{head}{headers}\r\n{body}".encode()


class Gateway:
    """Gives one answer after the other, of a list that several may share."""

    def __init__(self, answers: list[bytes]) -> None:
        self.keys: list[str] = []
        self.url = ""
        self._answers = answers

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.keys += [
            line[17:] for line in head.split("\r\n") if line.startswith("idempotency-key")
        ]
        writer.write(self._answers.pop(0))
        await writer.drain()
        writer.close()


@asynccontextmanager
async def gateways(*answers: list[bytes]) -> AsyncIterator[list[Gateway]]:
    made, servers = [], []
    for of_one in answers:
        gateway = Gateway(of_one)
        server = await asyncio.start_server(gateway.serve, "127.0.0.1", 0)
        gateway.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        made.append(gateway)
        servers.append(server)
    try:
        yield made
    finally:
        for server in servers:
            server.close()


async def ask(*answers: list[bytes]) -> tuple[Asked, list[Gateway]]:
    async with gateways(*answers) as made:
        load = Load([one.url for one in made], "m", random.Random(1))  # noqa: S311
        asked = await load.send(ASK)
        assert not load.running
        return asked, made


async def test_a_whole_answer_is_read() -> None:
    asked, _ = await ask([answer(200, WHOLE)])
    last = asked.last
    assert (last.whole, last.text, last.num_tokens, last.rid) == (True, "ab", 2, "r200")
    assert len(last.times_s) == 2


async def test_one_that_is_cut_is_repeated_elsewhere_with_its_key() -> None:
    cut = answer(200, event("a", 1), more=99)
    answers = [cut, answer(409, "{}", headers="retry-after: 1\r\n"), answer(200, WHOLE)]
    asked, made = await ask(answers, answers)
    assert [one.status for one in asked.attempts] == [200, 409, 200]
    first, second = asked.attempts[:2]
    assert first.broken
    assert not first.whole
    assert first.gateway != second.gateway
    keys = [key for one in made for key in one.keys]
    assert len(keys) == 3
    assert set(keys) == {asked.key}


async def test_a_key_whose_request_has_ended_ends_it() -> None:
    told = answer(409, '{"error": {"message": "answers are not kept"}}')
    answers = [answer(200, event("a", 1), more=99), told]
    asked, _ = await ask(answers, answers)
    assert asked.last.ended_before
    assert len(asked.attempts) == 2


@pytest.mark.parametrize("status", [400, 500])
async def test_an_error_ends_it(status: int) -> None:
    asked, _ = await ask([answer(status, '{"error": {"code": "x"}}')])
    assert [one.status for one in asked.attempts] == [status]
    assert "x" in asked.last.error


async def test_an_error_within_the_stream_ends_it() -> None:
    failed = event("a", 1) + 'data: {"error": {"code": "attempts_exhausted"}}\n\n'
    asked, _ = await ask([answer(200, failed)])
    assert len(asked.attempts) == 1
    assert "attempts_exhausted" in asked.last.error


async def test_a_client_leaves_in_whatever_state_its_request_is() -> None:
    silent: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: silent.append(writer), "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        load = Load([f"http://127.0.0.1:{port}"], "m", random.Random(1))  # noqa: S311
        sending = asyncio.create_task(load.send(ASK))
        await asyncio.sleep(0)
        (connection,) = load.running.values()
        await until("connected", lambda: connection.is_open and bool(silent))
        connection.leave()
        asked = await sending
        silent[0].close()
    assert asked.last.left
    assert not asked.last.whole
    assert len(asked.attempts) == 1


def test_asks_are_drawn_by_the_seed_alone() -> None:
    asks, same, others = (make_asks(6, random.Random(seed)) for seed in (3, 3, 4))  # noqa: S311
    assert asks == same != others
    assert [ask.seed is None for ask in asks] == [True, False] * 3
    body = json.loads(asks[1].body("m"))
    assert body["seed"] == asks[1].seed
    assert body["stream"] is True


def test_where_company_may_change_a_token_the_margin_is_asked_for() -> None:
    for ask in make_asks(4, random.Random(3), exact=False):  # noqa: S311
        body = json.loads(ask.body("m"))
        assert (body["temperature"], body["logprobs"]) == (0, 2)
        assert "seed" not in body


@pytest.mark.parametrize(
    ("likeliest", "margin"),
    [
        ([{"a": -0.1, "b": -3.0}, {"c": -0.5, "d": -0.75}], 0.25),
        ([{"a": -0.1, "b": -3.0}, {"a": -0.7}], 0.0),
        (None, math.inf),
    ],
)
async def test_the_least_margin_of_an_answer(
    likeliest: list[dict[str, float]] | None, margin: float
) -> None:
    logprobs = {"top_logprobs": likeliest} if likeliest else None
    choice = {"text": "ab", "finish_reason": "length", "logprobs": logprobs}
    body = {"choices": [choice], "usage": {"completion_tokens": 2}}
    asked, _ = await ask([answer(200, f"data: {json.dumps(body)}\n\ndata: [DONE]\n\n")])
    assert asked.last.whole
    assert asked.last.margin == margin


async def test_no_two_runs_share_a_key() -> None:
    """A gateway would tell the second that its answers are not kept."""
    first, made = await ask([answer(200, WHOLE)])
    second, _ = await ask([answer(200, WHOLE)])
    assert first.key == made[0].keys[0] != second.key


async def test_a_stream_that_just_stops_is_not_asked_for_again() -> None:
    asked, _ = await ask([answer(200, event("a", 1))])
    assert len(asked.attempts) == 1
    assert asked.last.failed
