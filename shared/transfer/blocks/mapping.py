"""Pools of other workers of this host, mapped from descriptors that their owners pass."""

import asyncio
import contextlib
import logging
import os
from collections.abc import Sequence
from typing import Protocol

from shared.errors import CannotMapError, CorruptPieceError, PeerLostError, ProtocolError
from shared.kv.columns import Words, pack_words
from shared.kv.layer_groups import GroupRange
from shared.kv.peer_memory import PeerTable
from shared.kv.probe import Probed
from shared.kv.share import MAX_RANKS
from shared.mover.messages import LastFetch
from shared.protocol import Attempt
from shared.transfer.blocks.manifest import Tags
from shared.transfer.frame_stream import FrameStream
from shared.transfer.frames import Pool

logger = logging.getLogger(__name__)

MAX_DESCRIPTORS = 1 + MAX_RANKS
"""of the table, and of each rank's pool where that is another file"""


class BlockMover(Protocol):
    """Copies blocks between pools, in the process that may write ours. PeerLostError once that
    process is gone. A call that is cancelled returns only once it touches no block any more."""

    async def map(self, source: str, num_blocks: int, descriptors: Sequence[int]) -> None:
        """The pools of the ranks of the worker of incarnation `source`. The descriptors stay the
        caller's. PeerLostError if they cannot be mapped."""

    async def watch(self, source: str, num_blocks: int, table: int) -> None:
        """From now until `unmap` this source shows token 1 of attempts. `table`: the file of its
        generations and first tokens; stays the caller's. PeerLostError if it cannot be mapped."""

    async def give_up(self, attempt: Attempt) -> bool:
        """Whether the engine has not begun, and will not."""

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
        last: LastFetch | None = None,
    ) -> Words:
        """Copy layer groups into `blocks` of ours; the digests [blocks, groups] of what lies there
        now. CorruptPieceError if it could not be done. `last`: with them the engine may begin as
        soon as the source, which is watched, shows token 1."""

    async def digests(self, blocks: Sequence[int], groups: GroupRange, step: int | None) -> Words:
        """[blocks, groups], of our own pool, now; of a step, of the first groups only, one at
        least, once it has written them."""


class Mapping:
    """The pool of one source; good until it has ended."""

    def __init__(self, source: str, mover: BlockMover) -> None:
        self._name = f"mapped {source}"
        """as the mover calls it, which may have joined the pool of the same source besides"""
        self._mover = mover
        self._table: PeerTable | None = None
        self.is_watched = False
        """it shows first tokens"""
        self.probed: Probed | None = None
        """what the first read of it brought, and how fast"""

    @property
    def stands(self) -> bool:
        return self._table is not None

    async def begin(self, pool: Pool, descriptors: list[int]) -> None:
        """Map what the owner passed; closes the descriptors. CannotMapError if that fails."""
        try:
            pools = descriptors[1:] or descriptors
            await self._mover.map(self._name, pool.num_blocks, pools)
            self.probed = await self._mover.probe(self._name)
            if pack_words([self.probed.digest]) != pool.probe:
                raise CannotMapError("a probe of the source's pool read other bytes")
            if pool.has_first_tokens:
                await self._watch(pool.num_blocks, descriptors[0])
            self._table = PeerTable(pool.num_blocks, os.dup(descriptors[0]))
        except (OSError, ValueError) as error:
            raise CannotMapError(f"the source's pool cannot be mapped: {error}") from None
        except (PeerLostError, CorruptPieceError) as error:
            raise CannotMapError(str(error)) from None
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    async def _watch(self, num_blocks: int, table: int) -> None:
        """Without first tokens blocks are pulled all the same."""
        try:
            await self._mover.watch(self._name, num_blocks, table)
        except PeerLostError as error:
            logger.warning("%s shows no first tokens: %s", self._name, error)
        else:
            self.is_watched = True

    async def until_lost(self) -> None:
        """A mapping stands as long as its connection."""
        await asyncio.Event().wait()

    async def end(self) -> None:
        """Returns once nothing of the pool is mapped."""
        table, self._table = self._table, None
        if table is not None:
            table.close()
        with contextlib.suppress(PeerLostError):  # then the mover has unmapped everything
            await self._mover.unmap(self._name)

    async def fetch(
        self,
        attempt: Attempt,
        tags: Tags,
        blocks: Sequence[int],
        groups: GroupRange,
        last: LastFetch | None = None,
    ) -> Words:
        """Copy layer groups of the source's blocks into `blocks` of ours; digests [blocks, groups]
        of the copies. `last`: of a source that is watched."""
        source_blocks = tags.block_ids.tolist()
        fetch = self._mover.fetch
        try:
            return await fetch(attempt, self._name, source_blocks, blocks, groups, last)
        except CorruptPieceError:
            self._standing()
            raise

    async def give_up(self, attempt: Attempt) -> bool:
        """Blocks are to be fetched again. False if the engine has begun with them."""
        return await self._mover.give_up(attempt)

    def is_fresh(self, tags: Tags) -> bool:
        """R13: the source's generations are those of the tags. A generation is raised before its
        block is overwritten, so every copy that ended before now saw these blocks whole."""
        return tags.hold(self._standing().generations)

    def _standing(self) -> PeerTable:
        if self._table is None:
            raise PeerLostError("the owner of the mapped pool is gone")
        return self._table


async def mapped_pool(mover: BlockMover, source: str, stream: FrameStream) -> Mapping:
    """What the owner shows over the stream, mapped. CannotMapError if it cannot be; ProtocolError
    for what is no pool."""
    pool, _ = await stream.receive()
    if not isinstance(pool, Pool) or pool.num_blocks < 1:
        raise ProtocolError("the source shows no pool")
    descriptors = await stream.receive_descriptors(MAX_DESCRIPTORS)
    if not descriptors:
        raise ProtocolError("the source passes no descriptor")
    mapping = Mapping(source, mover)
    try:
        await mapping.begin(pool, descriptors)
    except BaseException:
        await mapping.end()
        raise
    return mapping
