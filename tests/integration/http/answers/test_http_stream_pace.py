"""A stream whose client reads late: every token, in order.

Tokens of a client that keeps up are written where they arrive, those of another by the answer's
task; here the answer goes from one to the other and back, and the seams must not show.
"""

import asyncio
import socket
from collections.abc import Sequence
from typing import Literal

import pytest

from services.gateway.owner.generation import Delta, GenerateRequest
from tests.integration.http.raw_client import request_bytes
from tests.support.cases.http_bodies import TEXT, events_of, text_body, text_of
from tests.support.fakes.served_app import ServedApp, Step

pytestmark = [pytest.mark.anyio, pytest.mark.clock]
LIMIT_S = 20.0
NUM_WORDS = 4000
PADDING = "x" * 900
LAST_WORDS = 50
"""these come when the client has read all others"""


class Gate(asyncio.Event):
    """Tells that somebody waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = asyncio.Event()

    async def wait(self) -> Literal[True]:
        self.reached.set()
        return await super().wait()


async def test_a_client_that_reads_late_gets_everything_in_order(app: ServedApp) -> None:
    caught_up = Gate()

    def delta(text: str) -> Delta:
        return Delta(tuple(app.tokenizer.encode(text, add_special_tokens=False).ids), ())

    def script(_: GenerateRequest) -> Sequence[Step]:
        padding = delta(PADDING).token_ids
        words = [delta(f"{number};") for number in range(NUM_WORDS)]
        early = [Delta(word.token_ids + padding, ()) for word in words[:-LAST_WORDS]]
        return [*early, caught_up, *words[-LAST_WORDS:], Delta((70,), (), "length")]

    app.door.script = script
    loop = asyncio.get_running_loop()
    received = bytearray()
    with socket.socket() as late:
        late.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        late.setblocking(False)
        await loop.sock_connect(late, app.address)
        body = text_body(stream=True)
        await loop.sock_sendall(late, request_bytes(TEXT, body, "connection: close"))
        async with asyncio.timeout(LIMIT_S):
            await caught_up.reached.wait()
            num_early = app.door.generations[0].num_yielded_tokens
            assert num_early < (NUM_WORDS - LAST_WORDS) * len(PADDING), "it stalls"
            while part := await loop.sock_recv(late, 1 << 16):
                received += part
                if f"{NUM_WORDS - LAST_WORDS - 1};{PADDING}".encode() in received[-(1 << 18) :]:
                    caught_up.set()
    events = events_of(unchunked(bytes(received)).decode())
    numbers = text_of(events).replace("x", "").split(";")
    assert numbers[:-1] == [str(number) for number in range(NUM_WORDS)]
    assert events[-1] == "[DONE]"


def unchunked(answer: bytes) -> bytes:
    """The body of one chunked answer."""
    _, _, rest = answer.partition(b"\r\n\r\n")
    parts: list[bytes] = []
    at = 0
    while at < len(rest):
        start = rest.index(b"\r\n", at) + 2
        end = start + int(rest[at : start - 2], 16)
        parts.append(rest[start:end])
        assert rest[end : end + 2] == b"\r\n"
        at = end + 2
    assert parts[-1] == b""
    return b"".join(parts)
