"""The tcp transport on the wire: damage, loss, silence, strangers, and how many bytes it takes."""

import asyncio
import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from shared.errors import CorruptPieceError, KVTransferError, PeerLostError
from shared.kv.columns import Words
from shared.kv.digest import BlockDigests
from shared.kv.layer_groups import GroupRange, layer_groups
from shared.protocol import Attempt, TokenRun
from shared.transfer.blocks.manifest import Part
from shared.transfer.digest_threads import DigestThreads
from shared.transfer.frames import (
    PREFIX_BYTES,
    Blocks,
    Open,
    Opened,
    Read,
    Refused,
    Release,
    Renew,
    ShortSeal,
    Verified,
    Verify,
    Watermark,
    encode,
)
from shared.transfer.limits import TransferLimits
from shared.transfer.offers import LiveOffer, OfferState
from shared.transfer.transport import Pulled
from tests.support.fakes.proxy import (
    BitFlip,
    Direction,
    PullPlan,
    TcpProxy,
    frames_of,
    predicted_wire_bytes,
)
from tests.support.introduction import introduce
from tests.support.measured import Measured
from tests.support.pairs.transfer_pair import ATTEMPT, LAYOUT, RUN, TICKET, Pair, content, until

pytestmark = [pytest.mark.anyio, pytest.mark.clock, pytest.mark.timeout(120)]

ROOT = Path(__file__).parents[3]
OPEN = Open(Attempt("rid", 1), TICKET, "p.1", LAYOUT.fingerprint(), takes_short_seal=True)

GROUPS = layer_groups(LAYOUT)


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    async with Pair("tcp") as pair:
        yield pair


@contextlib.asynccontextmanager
async def proxy_before(pair: Pair) -> AsyncIterator[tuple[TcpProxy, str]]:
    proxy = TcpProxy(pair.p.transport.address.port)
    try:
        yield proxy, await proxy.start()
    finally:
        await proxy.close()


def offer_two_pieces(pair: Pair, attempt: Attempt) -> LiveOffer:
    offer = pair.p.transport.offer(attempt, TICKET)
    offer.publish(pair.p.piece(0, 5, 6, 2, seed=attempt.epoch))
    offer.publish(pair.p.piece(3, 9, seed=attempt.epoch))
    offer.seal(TokenRun("rid", attempt.epoch, 0, (42,)))
    assert isinstance(offer, LiveOffer)
    return offer


async def offer_sealed(pair: Pair, attempt: Attempt) -> LiveOffer:
    """Everything is published before a reader comes, so the frames and their order are the
    same in every pull."""
    offer = offer_two_pieces(pair, attempt)
    await until(lambda: offer.state is OfferState.SEALED)
    return offer


@pytest.mark.parametrize("num_present", [0, 2, 4])
async def test_bytes_on_the_wire_are_exactly_the_predicted_ones(
    pair: Pair, num_present: int
) -> None:
    async with proxy_before(pair) as (proxy, address):
        offer_two_pieces(pair, ATTEMPT)
        await pair.d.transport.pull(pair.request(4, num_present, source=address))
        await until(lambda: pair.p.released)
        plan = PullPlan(
            OPEN,
            (Part(0, 3, GROUPS.all), Part(3, 1, GROUPS.all)),
            GROUPS,
            RUN,
            num_present,
            renew_every_ms=round(pair.limits.renew_every_s * 1000),
        )
        predicted = predicted_wire_bytes(plan)
        assert proxy.num_bytes == {
            "to_server": predicted.to_prefill,
            "to_client": predicted.to_decode,
        }
        assert predicted.to_decode > (4 - num_present) * LAYOUT.block_bytes


class PlannedFlip(NamedTuple):
    bit: BitFlip
    frame: type
    in_payload: bool


def flips(direction: Direction, stream: bytes, rng: random.Random) -> Iterator[PlannedFlip]:
    """A random bit in every field of every prefix, in every byte of every header, and in
    every eighth byte of the payload."""
    fields, sizes = (0, 4, 6, 10, 14, 22, 26), (4, 2, 4, 4, 8, 4, 4)
    for seen in frames_of(stream):
        prefix = [
            seen.start + at + rng.randrange(size) for at, size in zip(fields, sizes, strict=True)
        ]
        header = range(seen.start + PREFIX_BYTES, seen.payload_start)
        payload = range(seen.payload_start, seen.end, 8)
        for at in (*prefix, *header, *payload):
            bit = BitFlip(direction, at, rng.randrange(8))
            yield PlannedFlip(bit, type(seen.frame), at >= seen.payload_start)


async def pull_over_proxy(pair: Pair, proxy: TcpProxy, address: str, epoch: int) -> Pulled | None:
    """The right answer, or None for an error of the contract. Never wrong bytes, never a hang."""
    attempt = Attempt("rid", epoch)
    pair.p.released.clear()
    proxy.recorded = {"to_server": bytearray(), "to_client": bytearray()}
    offer = await offer_sealed(pair, attempt)
    try:
        async with asyncio.timeout(8):
            pulled = await pair.d.transport.pull(pair.request(4, source=address, attempt=attempt))
    except KVTransferError:
        return None
    else:
        expected = [content(block_id, epoch) for block_id in (5, 6, 2, 9)]
        assert [pair.received(i) for i in range(4)] == expected
        assert pulled.run == TokenRun("rid", epoch, 0, (42,))
        return pulled
    finally:
        await until(lambda: not proxy.num_open)
        offer.withdraw()


def assert_noticed(planned: PlannedFlip, pulled: Pulled | None, pair: Pair, answer: bytes) -> None:
    """By decode, which reads again or fails, or by prefill, which says so and releases nothing."""
    if planned.in_payload:
        assert pulled is not None, planned
        assert pulled.num_reread == 1, planned
        assert pair.p.released, planned
        return
    assert not pair.p.released, planned
    assert (pulled is not None) == (planned.frame is Release), planned
    if planned.bit.direction == "to_server":
        assert frames_of(answer)[-1].frame == Refused("damaged"), planned


async def test_every_flipped_bit_is_detected_or_read_again() -> None:
    """F21. No pull lasts long enough for a Renew, so every planned bit is on the wire."""
    limits = TransferLimits(lease_s=90.0, progress_timeout_s=30.0)
    async with Pair("tcp", limits) as pair, proxy_before(pair) as (proxy, address):
        assert await pull_over_proxy(pair, proxy, address, epoch=1) is not None
        assert proxy.recorded is not None
        rng = random.Random(21)  # noqa: S311
        planned = [
            flip
            for direction, stream in proxy.recorded.items()
            for flip in flips(direction, bytes(stream), rng)
        ]
        for number, flip in enumerate(planned):
            proxy.flip, proxy.num_flipped = flip.bit, 0
            pulled = await pull_over_proxy(pair, proxy, address, epoch=10 + number % 50)
            assert proxy.num_flipped == 1, flip
            assert_noticed(flip, pulled, pair, bytes(proxy.recorded["to_client"]))
    num_payload = sum(flip.in_payload for flip in planned)
    assert num_payload == 4 * LAYOUT.block_bytes // 8
    assert len(planned) > 700
    kinds = {Open, Read, Verify, Release, Opened, Watermark, Blocks, ShortSeal, Verified}
    assert {flip.frame for flip in planned} == kinds


async def test_without_digests_the_flip_test_would_fail(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The detector's mutant: payload damage is only seen by the digests."""

    def nothing(_: BlockDigests, block_ids: Sequence[int], groups: GroupRange) -> Words:
        return np.zeros((len(block_ids), groups.num), np.uint64)

    monkeypatch.setattr(BlockDigests, "of", nothing)
    async with proxy_before(pair) as (proxy, address):
        proxy.recorded = {"to_server": bytearray(), "to_client": bytearray()}
        await offer_sealed(pair, ATTEMPT)
        await pair.d.transport.pull(pair.request(4, source=address))
        await until(lambda: not proxy.num_open)
        at = proxy.recorded["to_client"].index(content(6, 1))
        proxy.flip = BitFlip("to_client", at + 17, 3)
        await offer_sealed(pair, Attempt("rid", 2))
        await pair.d.transport.pull(pair.request(4, source=address, attempt=Attempt("rid", 2)))
        assert proxy.num_flipped == 1
        assert pair.received(1) != content(6, 2)


SOURCE = """
import asyncio, sys
from shared.kv.layout import KVLayout
from shared.kv.memory import KVMemory, Piece
from shared.protocol import Attempt
from shared.transfer.ways.tcp import tcp_transport

async def main():
    layout = KVLayout("m", "float32", 3, 2, 2, 4, 4)
    transport = tcp_transport(KVMemory.create(layout, 4), "p.1")
    await transport.start()
    transport.offer(Attempt("rid", 1), "ticket").publish(Piece(0, (1, 2), (0, 0)))
    sys.stdout.write(transport.address.port + "\\n")
    sys.stdout.flush()
    await asyncio.sleep(600)

asyncio.run(main())
"""


@contextlib.contextmanager
def source_process() -> Iterator[tuple[subprocess.Popen[str], str]]:
    process = subprocess.Popen(  # noqa: S603
        [sys.executable, "-c", SOURCE], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert process.stdout is not None
    with process, process.stdout:
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_dead_or_frozen_source_is_a_lost_peer(
    blow: signal.Signals, measured: Measured
) -> None:
    """Killed mid-transfer: at once. Frozen: within the progress timeout."""
    limits = TransferLimits(progress_timeout_s=0.9)
    async with Pair("tcp", limits) as pair:
        with source_process() as (process, address):
            pull = asyncio.create_task(pair.d.transport.pull(pair.request(3, source=address)))
            pair.d.memory.blocks[:] = b"\xff" * len(pair.d.memory.blocks)
            await until(lambda: pair.received(1) == bytes(LAYOUT.block_bytes))
            started_s = time.monotonic()
            os.kill(process.pid, blow)
            with pytest.raises(PeerLostError):
                await pull
            limit_s = 0.5 if blow is signal.SIGKILL else 2.5
            measured.at_most("noticed after", time.monotonic() - started_s, limit_s, "s")


async def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    async with Pair("tcp") as pair:
        for source in (address, "no-such-host.invalid:1", "nonsense"):
            with pytest.raises(PeerLostError):
                await pair.d.transport.pull(pair.request(1, source=source))


def encoded(*frames: Open | Read | Renew | Release) -> bytes:
    return b"".join(encode(frame, sequence) for sequence, frame in enumerate(frames))


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 4,
        encoded(Renew()),
        encoded(Open(Attempt("r" * 5000, 1), "t", "p.1", "f")),
        encoded(OPEN, Read(0, 99, 0, 2)),
        encoded(OPEN, Read(-1, 1, 0, 2)),
        encoded(OPEN, Read(0, 0, 0, 2)),
        encoded(OPEN, Read(0, 1, 0, 0)),
        encoded(OPEN, Read(0, 1, -1, 1)),
        encoded(OPEN, Read(0, 1, 1, 2)),
        encoded(OPEN, OPEN),
        encode(OPEN, 0) + encode(Renew(), 0),
        encode(OPEN, 0) + encode(Renew(), 1, payload_bytes=2**40),
        encoded(OPEN, *[Read(0, 1, 0, 2)] * 3000),
    ],
    ids=[
        "http",
        "no-open",
        "long-open",
        "unpublished",
        "negative",
        "empty-read",
        "no-group",
        "negative-group",
        "group-too-many",
        "open-twice",
        "same-number",
        "payload",
        "flood",
    ],
)
async def test_a_stranger_is_hung_up_on_and_others_are_served(pair: Pair, sent: bytes) -> None:
    offer_two_pieces(pair, ATTEMPT)
    host, _, port = pair.p.transport.address.port.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    await introduce(reader, writer, "pull")
    writer.write(sent)
    async with asyncio.timeout(5):
        with contextlib.suppress(ConnectionError):
            while await reader.read(2**16):
                pass
    writer.close()
    assert (await pair.pull(4)).num_blocks == 4


async def test_a_source_that_lies_about_its_payload_is_damage(pair: Pair) -> None:
    async def lie(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await introduce(reader, writer, "pull", dials=False)
        await reader.read(2**16)
        writer.write(encode(Renew(), 0, payload_bytes=2**60))
        await reader.read()
        writer.close()

    server = await asyncio.start_server(lie, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    with pytest.raises(CorruptPieceError):
        await pair.d.transport.pull(pair.request(1, source=address))
    server.close()


async def test_cancelling_waits_for_the_thread_that_digests_the_destination(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer_two_pieces(pair, ATTEMPT)
    await until(lambda: pair.num_offers == 1)
    await asyncio.sleep(0.05)
    futures: list[asyncio.Future[Words]] = []

    def never(
        _: DigestThreads, block_ids: Sequence[int], __: GroupRange
    ) -> "asyncio.Future[Words]":
        futures.append(asyncio.get_running_loop().create_future())
        return futures[-1]

    monkeypatch.setattr(DigestThreads, "digests", never)
    pull = pair.pull(4)
    await until(lambda: len(futures) == 2)
    for _ in range(3):
        pull.cancel()
        await asyncio.sleep(0.01)
        assert not pull.done()
    for future in futures:
        future.set_result(np.zeros((1, len(GROUPS)), np.uint64))
    with pytest.raises(asyncio.CancelledError):
        await pull
