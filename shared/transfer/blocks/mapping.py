"""Pools of other workers of this host, mapped for as long as their owners' connections stand.

A mapping has a connection of its own, opened with the ticket of the pull that needs it first. Its
end is the end of the mapping, within a second (R19): the owner closed, or its process is gone.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from shared.errors import (
    BatonError,
    CannotMapError,
    CorruptPieceError,
    KVTransferError,
    PeerLostError,
    ProtocolError,
)
from shared.kv.columns import Words, pack_words
from shared.kv.layer_groups import GroupRange
from shared.kv.peer_memory import PeerTable
from shared.kv.probe import Probed
from shared.protocol import Attempt
from shared.tasks import Tasks, settled
from shared.transfer.blocks.manifest import Tags
from shared.transfer.frame_stream import FrameStream
from shared.transfer.frames import Pool
from shared.transfer.pull import open_attempt
from shared.transfer.transport import PullRequest
from shared.transfer_address import TransferAddress

logger = logging.getLogger(__name__)

MAX_DESCRIPTORS = 2
"""of the table, and of the pool where that is another file"""


class BlockMover(Protocol):
    """Copies blocks between pools, in the process that may write ours. PeerLostError once that
    process is gone. A call that is cancelled returns only once it touches no block any more."""

    async def map(self, source: str, num_blocks: int, descriptors: Sequence[int]) -> None:
        """The pool of the worker of incarnation `source`. The descriptors stay the caller's.
        PeerLostError if it cannot be mapped."""

    async def unmap(self, source: str) -> None:
        """Returns once nothing of that pool is mapped; nothing happens if it was not."""

    async def probe(self, source: str) -> Probed:
        """Read what follows the last block of a mapped pool, as blocks are read. CorruptPieceError
        if it could not be done."""

    async def fetch(
        self,
        attempt: Attempt,
        source: str,
        source_blocks: Sequence[int],
        blocks: Sequence[int],
        groups: GroupRange,
    ) -> Words:
        """Copy layer groups into `blocks` of ours; the digests [blocks, groups] of what lies there
        now. CorruptPieceError if it could not be done."""

    async def digests(self, blocks: Sequence[int], groups: GroupRange, step: int | None) -> Words:
        """[blocks, groups], of our own pool, once the step has written these groups; without a
        step, now."""


class Mapping:
    """The pool of one source; good until it has ended."""

    def __init__(self, source: str, mover: BlockMover) -> None:
        self.source = source
        self._mover = mover
        self._table: PeerTable | None = None
        self.probed: Probed | None = None
        """what the first read of it brought, and how fast"""

    @property
    def stands(self) -> bool:
        return self._table is not None

    async def begin(self, pool: Pool, descriptors: list[int]) -> None:
        """Map what the owner passed; closes the descriptors. CannotMapError if that fails."""
        try:
            await self._mover.map(self.source, pool.num_blocks, descriptors[-1:])
            self.probed = await self._mover.probe(self.source)
            if pack_words([self.probed.digest]) != pool.probe:
                raise CannotMapError("a probe of the source's pool read other bytes")
            self._table = PeerTable(pool.num_blocks, os.dup(descriptors[0]))
        except (OSError, ValueError) as error:
            raise CannotMapError(f"the source's pool cannot be mapped: {error}") from None
        except (PeerLostError, CorruptPieceError) as error:
            raise CannotMapError(str(error)) from None
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    async def end(self) -> None:
        """Returns once nothing of the pool is mapped."""
        table, self._table = self._table, None
        if table is not None:
            table.close()
        with contextlib.suppress(PeerLostError):  # then the mover has unmapped everything
            await self._mover.unmap(self.source)

    async def fetch(
        self, attempt: Attempt, tags: Tags, blocks: Sequence[int], groups: GroupRange
    ) -> Words:
        """Copy layer groups of the source's blocks into `blocks` of ours; digests [blocks, groups]
        of the copies."""
        source_blocks = tags.block_ids.tolist()
        try:
            return await self._mover.fetch(attempt, self.source, source_blocks, blocks, groups)
        except CorruptPieceError:
            self._standing()
            raise

    def is_fresh(self, tags: Tags) -> bool:
        """R13: the source's generations are those of the tags. A generation is raised before its
        block is overwritten, so every copy that ended before now saw these blocks whole."""
        return tags.hold(self._standing().generations)

    def _standing(self) -> PeerTable:
        if self._table is None:
            raise PeerLostError("the owner of the mapped pool is gone")
        return self._table


class Mappings:
    """One mapping for each source, shared by its pulls."""

    def __init__(
        self,
        mover: BlockMover,
        fingerprint: str,
        connect: Callable[[TransferAddress], Awaitable[FrameStream]],
    ) -> None:
        """`connect`: a stream to the source, both ends introduced."""
        self._mover = mover
        self._fingerprint = fingerprint
        self._connect = connect
        self._tasks = Tasks()
        self._live: dict[str, tuple[asyncio.Future[Mapping], asyncio.Task[None]]] = {}
        """by the incarnation of the source; the task ends with the mapping"""

    def __len__(self) -> int:
        return len(self._live)

    async def of(self, request: PullRequest) -> Mapping:
        """The mapping of the request's source. KVTransferError if there can be none now; the next
        request tries again."""
        while True:
            ours = request.source_incarnation not in self._live
            mapped, task = self._live.get(request.source_incarnation) or self._begin(request)
            either: set[asyncio.Future[Any]] = {mapped, task}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if mapped.done() and (ours or not mapped.exception()) and mapped.result().stands:
                return mapped.result()
            await settled([task])
            if ours:
                raise PeerLostError("the owner of the pool is gone, or this side is closing")

    async def close(self) -> None:
        """Unmaps everything."""
        await self._tasks.close()

    def _begin(
        self, request: PullRequest
    ) -> tuple["asyncio.Future[Mapping]", "asyncio.Task[None]"]:
        source = request.source_incarnation
        mapped: asyncio.Future[Mapping] = asyncio.get_running_loop().create_future()
        task = self._tasks.start(self._stand(request, mapped))
        self._live[source] = mapped, task
        task.add_done_callback(lambda _: self._live.pop(source))
        return self._live[source]

    async def _stand(self, request: PullRequest, mapped: "asyncio.Future[Mapping]") -> None:
        """From the connection to its end; then nothing of the source's pool is mapped here."""
        try:
            stream = await self._reach(request.source)
            try:
                await self._map_over(stream, request, mapped)
            finally:
                stream.close()
        except BatonError as error:
            if mapped.done():
                logger.warning("the pool of %s is unmapped: %s", request.source, error)
            else:
                damaged = not isinstance(error, KVTransferError)
                mapped.set_exception(CorruptPieceError(str(error)) if damaged else error)
                mapped.exception()  # whoever waited may have been cancelled

    async def _reach(self, source: TransferAddress) -> FrameStream:
        try:
            return await self._connect(source)
        except PeerLostError as error:
            raise CannotMapError(str(error)) from None

    async def _map_over(
        self, stream: FrameStream, request: PullRequest, mapped: "asyncio.Future[Mapping]"
    ) -> None:
        await open_attempt(stream, request, self._fingerprint, "map")
        pool, _ = await stream.receive()
        if not isinstance(pool, Pool) or pool.num_blocks < 1:
            raise ProtocolError("the source shows no pool")
        descriptors = await stream.receive_descriptors(MAX_DESCRIPTORS)
        if not descriptors:
            raise ProtocolError("the source passes no descriptor")
        mapping = Mapping(request.source_incarnation, self._mover)
        try:
            await mapping.begin(pool, descriptors)
            mapped.set_result(mapping)
            await stream.until_closed()
        finally:
            await mapping.end()
