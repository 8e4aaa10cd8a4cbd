"""How the bytes of blocks get from the pool to a socket, and from a socket to the pool.

blocks in host memory     sent and received where they lie
blocks in a GPU's memory  through the arena, which the mover fills and empties
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Protocol

from shared.kv.columns import Words
from shared.kv.layer_groups import GroupRange, layer_groups
from shared.kv.memory import KVMemory
from shared.protocol import Attempt
from shared.tasks import settled
from shared.transfer.blocks.arena import Arena
from shared.transfer.blocks.views import block_views
from shared.transfer.digest_threads import DigestThreads
from shared.transfer.frame_stream import FrameStream, Moved
from shared.transfer.frames import Blocks

MAX_ROOM_BYTES = 8 * 2**20
"""that one sender holds of the arena at a time, or two blocks: a reader that stands still must not
keep the others waiting"""


class Stager(Protocol):
    """Copies between a GPU's pool and the arena."""

    async def stage(self, blocks: Sequence[int], groups: GroupRange, room: slice) -> None:
        """Pool to arena. CorruptPieceError if it could not be done."""

    async def fill(
        self, attempt: Attempt, blocks: Sequence[int], groups: GroupRange, room: slice
    ) -> Words:
        """Arena to reserved blocks of the attempt; the digests [blocks, groups] of what lies there
        now. CorruptPieceError if it could not be done. A call that is cancelled returns once
        nothing touches the blocks."""


class Payloads(Protocol):
    """Of one pool. The bytes of blocks, or of layer groups of them, in the order given."""

    async def send(
        self,
        stream: FrameStream,
        frame: Blocks,
        block_ids: Sequence[int],
        groups: GroupRange,
        moved: Moved,
    ) -> None:
        """The frame, and behind it the bytes as they lie in the pool while they are sent."""

    async def receive(
        self,
        stream: FrameStream,
        attempt: Attempt,
        block_ids: Sequence[int],
        groups: GroupRange,
        moved: Moved,
    ) -> "asyncio.Future[Words]":
        """Returns once the bytes have come. The future has the digests [blocks, groups] of what
        lies in the pool now; nothing touches the blocks once it is done. Shield it: its work goes
        on when it is cancelled."""

    def close(self) -> None:
        """Nothing is sent or received any more."""


class HostPayloads:
    """Keeps the promise of `Payloads` for blocks in host memory."""

    def __init__(self, digests: DigestThreads) -> None:
        """`digests`: of what arrives; closed with this."""
        self._memory = digests.memory
        self._groups = layer_groups(digests.memory.layout)
        self._digests = digests

    async def send(
        self,
        stream: FrameStream,
        frame: Blocks,
        block_ids: Sequence[int],
        groups: GroupRange,
        moved: Moved,
    ) -> None:
        views = block_views(self._memory, block_ids, self._groups.span(groups))
        await stream.send(frame, views, moved)

    async def receive(
        self,
        stream: FrameStream,
        attempt: Attempt,
        block_ids: Sequence[int],
        groups: GroupRange,
        moved: Moved,
    ) -> "asyncio.Future[Words]":
        del attempt  # no step of a CPU runs ahead
        views = block_views(self._memory, block_ids, self._groups.span(groups))
        await stream.receive_into(views, moved)
        return self._digests.digests(block_ids, groups)

    def close(self) -> None:
        self._digests.close()


class StagedPayloads:
    """Keeps the promise of `Payloads` for blocks in a GPU's memory."""

    def __init__(
        self, memory: KVMemory, stager: Stager, max_room_bytes: int = MAX_ROOM_BYTES
    ) -> None:
        """`memory`: with an arena that has room for `max_room_bytes`, or for two blocks."""
        self._arena = Arena(memory.arena)
        self._groups = layer_groups(memory.layout)
        self._stager = stager
        self._max_room_bytes = max_room_bytes

    async def send(
        self,
        stream: FrameStream,
        frame: Blocks,
        block_ids: Sequence[int],
        groups: GroupRange,
        moved: Moved,
    ) -> None:
        num_bytes = len(block_ids) * self._groups.num_bytes(groups)
        async with (
            stream.sending(frame, num_bytes) as sending,
            aclosing(self._staged(block_ids, groups)) as rooms,
        ):
            async for room in rooms:
                await sending([self._arena.view(room)], moved)

    async def receive(
        self,
        stream: FrameStream,
        attempt: Attempt,
        block_ids: Sequence[int],
        groups: GroupRange,
        moved: Moved,
    ) -> "asyncio.Future[Words]":
        room = await self._arena.take(len(block_ids) * self._groups.num_bytes(groups))
        try:
            await stream.receive_into([self._arena.view(room)], moved)
        except BaseException:
            self._arena.give_back(room)
            raise
        return asyncio.ensure_future(self._fill(attempt, block_ids, groups, room))

    async def _staged(
        self, block_ids: Sequence[int], groups: GroupRange
    ) -> AsyncGenerator[slice, None]:
        """Room after room that holds the next blocks; while one is in use, the one after it is
        filled. Closed, it has given all room back."""
        at_once = max(1, self._max_room_bytes // (2 * self._groups.num_bytes(groups)))
        parts = deque(block_ids[at : at + at_once] for at in range(0, len(block_ids), at_once))
        ahead = self._begin_staging(parts, groups)
        try:
            while ahead is not None:
                room = await ahead
                ahead = self._begin_staging(parts, groups)
                try:
                    yield room
                finally:
                    self._arena.give_back(room)
        finally:
            if ahead is not None:
                await self._end_staging(ahead)

    def _begin_staging(
        self, parts: deque[Sequence[int]], groups: GroupRange
    ) -> "asyncio.Task[slice] | None":
        """Of the next part; None: there is none."""
        return asyncio.create_task(self._stage(parts.popleft(), groups)) if parts else None

    async def _end_staging(self, staging: "asyncio.Task[slice]") -> None:
        """Nobody uses the room."""
        staging.cancel()
        await settled([staging])
        if not staging.cancelled() and staging.exception() is None:
            self._arena.give_back(staging.result())

    async def _stage(self, block_ids: Sequence[int], groups: GroupRange) -> slice:
        """Room that holds the blocks; to be given back."""
        room = await self._arena.take(len(block_ids) * self._groups.num_bytes(groups))
        try:
            await self._stager.stage(block_ids, groups, room)
        except BaseException:
            self._arena.give_back(room)
            raise
        return room

    async def _fill(
        self, attempt: Attempt, block_ids: Sequence[int], groups: GroupRange, room: slice
    ) -> Words:
        try:
            return await self._stager.fill(attempt, block_ids, groups, room)
        finally:
            self._arena.give_back(room)

    def close(self) -> None:
        """The mover is not ours."""


def payloads_of(memory: KVMemory, stager: Stager) -> Payloads:
    """As its blocks lie."""
    if memory.holds_blocks:
        return HostPayloads(DigestThreads(memory))
    return StagedPayloads(memory, stager)
