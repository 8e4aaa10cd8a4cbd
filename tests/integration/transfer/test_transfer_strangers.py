"""The places where readers are accepted, and readers that do not belong to the cell."""

import asyncio
import os
import socket

import pytest

from shared.challenge import GREETING_BYTES
from shared.errors import PeerLostError
from shared.kv.memory import KVMemory
from shared.protocol import Attempt
from shared.transfer import frame_stream
from shared.transfer.frame_stream import FrameStream
from shared.transfer.frames import Open, Refused, encode
from shared.transfer.terms import Terms
from shared.transfer.transport import PullRequest
from shared.transfer.ways import mapped
from shared.transfer.ways.tcp import tcp_transport
from tests.support.pairs.transfer_pair import ATTEMPT, LAYOUT, TICKET, Pair

pytestmark = pytest.mark.anyio

CELL = "cell"
OPEN = Open(Attempt("rid", 1), TICKET, "p.1", LAYOUT.fingerprint())


@pytest.mark.parametrize("secret", ["", "other"], ids=["none", "another"])
async def test_without_the_cell_s_secret_no_frame_of_a_pull_is_read(
    monkeypatch: pytest.MonkeyPatch, secret: str
) -> None:
    """Closed at the proof: the session that would parse its first frame never begins."""

    def parse(*_: object) -> None:
        raise AssertionError("a stranger's frame was read")

    memory = KVMemory.create(LAYOUT, 4)
    source = tcp_transport(memory, "p.1", terms=Terms(CELL))
    reader_of = tcp_transport(KVMemory.create(LAYOUT, 4), "d.1", terms=Terms(secret))
    await source.start()
    source.offer(ATTEMPT, TICKET)
    monkeypatch.setattr(frame_stream, "decode_prefix", parse)
    request = PullRequest(ATTEMPT, source.address, "p.1", TICKET, (0,))
    with pytest.raises(PeerLostError, match="another cell secret"):
        await reader_of.pull(request)
    host, _, port = source.address.port.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(encode(OPEN, 0))
    async with asyncio.timeout(5):
        greeting = await reader.read()
    assert len(greeting) == GREETING_BYTES
    writer.close()
    await reader_of.close()
    await source.close()


@pytest.mark.parametrize("ticket", ["wrong", ""])
async def test_who_asks_for_the_pool_without_a_ticket_gets_no_descriptor(ticket: str) -> None:
    async with Pair("mapped") as pair:
        pair.p.transport.offer(ATTEMPT, TICKET)
        stream = await connected(pair, "")
        await stream.send(Open(ATTEMPT, ticket, "p.1", LAYOUT.fingerprint(), "map"))
        assert (await stream.receive())[0] == Refused("unknown")
        with pytest.raises(PeerLostError, match="closed"):
            await stream.receive_descriptors(2)
        stream.close()


async def test_without_the_cell_s_secret_no_pool_is_asked_for() -> None:
    async with Pair("mapped") as pair:
        with pytest.raises(PeerLostError, match="another cell secret"):
            await connected(pair, "other")


async def test_another_user_is_hung_up_on_before_the_challenge(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The owner believes to be a user that neither is root nor runs this test."""
    async with Pair("mapped") as pair:
        monkeypatch.setattr(mapped, "peer_uid", lambda _: os.geteuid() + 1)
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
        with pytest.raises(PeerLostError):
            await connected(pair, "")


async def connected(pair: Pair, cell_secret: str) -> FrameStream:
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(pair.p.transport.address.socket)
    return await Terms(cell_secret).introduce(sock)
