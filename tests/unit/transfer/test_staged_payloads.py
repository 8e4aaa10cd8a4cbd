"""Blocks of a GPU's pool on their way through the arena: whole, in order, and no room is lost; the
next are copied while those before are sent."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Sequence
from typing import cast

import numpy as np
import pytest

from shared.errors import PeerLostError
from shared.kv.columns import Words, pack_ids, pack_words
from shared.kv.layer_groups import GroupRange, layer_groups
from shared.kv.layout import KVLayout
from shared.kv.memory import KVMemory
from shared.protocol import Attempt
from shared.transfer.blocks.payloads import StagedPayloads
from shared.transfer.frame_stream import FrameStream, Moved, SendMore
from shared.transfer.frames import Blocks, Frame
from tests.support.fakes.staged_copies import StagedCopies

pytestmark = pytest.mark.anyio

LAYOUT = KVLayout("m", "float32", 3, 2, 1, 8, 4)
GROUPS = layer_groups(LAYOUT)
NUM_BLOCKS = 7
ROOM_BYTES = 2 * LAYOUT.block_bytes
"""of the arena as well: whatever is not given back is missed by the next"""
ATTEMPT = Attempt("rid", 1)


class Worker:
    """A pool apart, and an arena that copies at once."""

    def __init__(self, sock: socket.socket) -> None:
        self.pool = KVMemory.create(LAYOUT, NUM_BLOCKS)
        host = KVMemory.create(LAYOUT, NUM_BLOCKS, ROOM_BYTES)
        self.copies = StagedCopies(self.pool, host)
        self.payloads = StagedPayloads(host, self, ROOM_BYTES)
        self.arena = self.payloads._arena
        self.num_staged = 0
        self.staged = asyncio.Event()
        """one more has been"""
        self.may_stage = asyncio.Semaphore(99)
        self.stream = FrameStream(sock, 5.0)

    async def stage(self, blocks: Sequence[int], groups: GroupRange, room: slice) -> None:
        await self.may_stage.acquire()
        self.copies.stage(blocks, groups, room.start)
        self.num_staged += 1
        self.staged.set()

    async def fill(
        self, attempt: Attempt, blocks: Sequence[int], groups: GroupRange, room: slice
    ) -> Words:
        assert attempt == ATTEMPT
        await asyncio.sleep(0)
        return self.copies.fill(blocks, groups, room.start, None)

    async def send(
        self, blocks: Sequence[int], groups: GroupRange, stream: FrameStream | None = None
    ) -> None:
        frame = Blocks(0, pack_ids(blocks), pack_words([1] * len(blocks)))
        await self.payloads.send(stream or self.stream, frame, blocks, groups, lambda _: None)

    async def receive(self, blocks: Sequence[int], groups: GroupRange) -> Words:
        filling = await self.payloads.receive(self.stream, ATTEMPT, blocks, groups, lambda _: None)
        return await filling


@pytest.fixture
async def workers() -> AsyncIterator[tuple[Worker, Worker]]:
    ours, theirs = socket.socketpair()
    source, target = Worker(ours), Worker(theirs)
    source.pool.blocks[:] = np.random.default_rng(5).bytes(len(source.pool.blocks))
    yield source, target
    source.stream.close()
    target.stream.close()


@pytest.mark.parametrize("groups", [GROUPS.all, GroupRange(1, 1)])
async def test_more_than_a_room_holds_arrives_in_order(
    workers: tuple[Worker, Worker], groups: GroupRange
) -> None:
    source, target = workers
    theirs, ours = [6, 2, 0, 5, 1], [0, 1, 3, 4, 6]
    for _ in range(2):
        sending = asyncio.create_task(source.send(theirs, groups))
        await target.stream.receive()
        for start in range(0, 5, 2):
            await target.receive(ours[start : start + 2], groups)
        await sending
    span = GROUPS.span(groups)
    rows = source.pool.rows()[theirs], target.pool.rows()[ours]
    assert (rows[0][:, span] == rows[1][:, span]).all()
    untouched = np.ones(LAYOUT.block_bytes, bool)
    untouched[span] = False
    assert not target.pool.rows()[[2, 5]].any() and not rows[1][:, untouched].any()


async def test_a_source_that_leaves_amid_a_block_costs_no_room(
    workers: tuple[Worker, Worker],
) -> None:
    source, target = workers
    source.stream.close()
    for _ in range(3):
        with pytest.raises(PeerLostError):
            await target.receive([1, 2], GROUPS.all)


async def test_a_reader_that_leaves_amid_a_block_costs_no_room(
    workers: tuple[Worker, Worker],
) -> None:
    source, target = workers
    target.stream.close()
    for _ in range(3):
        with pytest.raises(PeerLostError):
            await source.send([1, 2], GROUPS.all)


class HeldStream:
    """Sends nothing more until it may."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.may_go_on = asyncio.Event()
        self.error: Exception | None = None

    @contextlib.asynccontextmanager
    async def sending(self, frame: Frame, payload_bytes: int) -> AsyncIterator[SendMore]:
        yield self._send

    async def _send(self, views: list[memoryview], moved: Moved) -> None:
        self.sent += map(bytes, views)
        await self.may_go_on.wait()
        if self.error is not None:
            raise self.error


def begin(source: Worker, stream: HeldStream) -> "asyncio.Task[None]":
    held = cast("FrameStream", stream)
    return asyncio.create_task(source.send([4, 2, 6, 1], GROUPS.all, held))


async def staged(source: Worker, number: int) -> None:
    async with asyncio.timeout(5):
        while source.num_staged < number:
            source.staged.clear()
            await source.staged.wait()
    for _ in range(5):
        await asyncio.sleep(0)


async def test_the_next_blocks_are_staged_while_some_are_sent(
    workers: tuple[Worker, Worker],
) -> None:
    source, stream = workers[0], HeldStream()
    sending = begin(source, stream)
    await staged(source, 2)
    assert len(stream.sent) == 1
    assert source.num_staged == 2, "no more than there is room for"
    stream.may_go_on.set()
    await sending
    assert b"".join(stream.sent) == b"".join(bytes(source.pool.block(b)) for b in (4, 2, 6, 1))
    assert source.arena._taken == []


@pytest.mark.parametrize("ahead", ["is filled", "is being filled", "waits for room"])
@pytest.mark.parametrize("how", ["fails", "is cancelled"])
async def test_room_that_is_filled_ahead_is_given_back(
    workers: tuple[Worker, Worker], how: str, ahead: str
) -> None:
    source, stream = workers[0], HeldStream()
    if ahead == "is being filled":
        source.may_stage = asyncio.Semaphore(1)
    held = [await source.arena.take(LAYOUT.block_bytes)] if ahead == "waits for room" else []
    sending = begin(source, stream)
    await staged(source, 2 if ahead == "is filled" else 1)
    assert len(source.arena._taken) == 2
    expected: type[BaseException] = asyncio.CancelledError
    if how == "fails":
        expected = PeerLostError
        stream.error = PeerLostError("gone")
        stream.may_go_on.set()
    else:
        sending.cancel()
    with pytest.raises(expected):
        await sending
    assert source.arena._taken == held
