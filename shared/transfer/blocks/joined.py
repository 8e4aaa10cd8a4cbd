"""Blocks that are read out of the source's pool over RDMA, by the agents of both movers.

The source's agent is told of when its pool is first pulled from, and forgotten with the connection
that showed it. Whether blocks are fresh the source says: its generations are not read.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Protocol

from shared.errors import CannotMapError, CorruptPieceError, PeerLostError, ProtocolError
from shared.kv.columns import Words, pack_words
from shared.kv.layer_groups import GroupRange
from shared.kv.memory import KVMemory
from shared.kv.probe import Probed
from shared.mover.messages import MAX_CARD_BYTES
from shared.protocol import Attempt
from shared.transfer.blocks.linked import Gives
from shared.transfer.blocks.manifest import Part, Tags
from shared.transfer.blocks.mapping import BlockMover
from shared.transfer.blocks.views import shown_probe
from shared.transfer.frame_stream import FrameStream
from shared.transfer.frames import Pool, Refused
from shared.transfer.offers import LiveOffer

TOO_LONG = "the cards of a worker's ranks are longer than a frame holds"


class AgentMover(BlockMover, Protocol):
    """A mover with an agent."""

    async def show(self, name: str) -> bytes:
        """The card by which others read the pool of this worker, whose incarnation is `name`.
        PeerLostError, with the cause, if they cannot."""

    async def join(self, name: str, source: str, num_blocks: int, card: bytes) -> None:
        """From now on the pool of the worker of incarnation `source` is probed, fetched from and
        unmapped as one that is mapped. PeerLostError if it cannot be read."""


class JoinedPool:
    """The pool of one source; good until it has ended."""

    def __init__(self, source: str, mover: AgentMover, probed: Probed) -> None:
        self.source = source
        self.probed = probed
        """what the first read of it brought, and how fast"""
        self._mover = mover
        self._lost = asyncio.Event()

    @property
    def stands(self) -> bool:
        return not self._lost.is_set()

    async def until_lost(self) -> None:
        await self._lost.wait()

    async def end(self) -> None:
        """Returns once nothing of the pool is read."""
        self._lost.set()
        with contextlib.suppress(PeerLostError):  # then the mover has forgotten everything
            await self._mover.unmap(self.source)

    async def fetch(
        self, attempt: Attempt, tags: Tags, blocks: Sequence[int], groups: GroupRange
    ) -> Words:
        """A read fails when its source is gone; the next pull finds out whether it is."""
        source_blocks = tags.block_ids.tolist()
        try:
            return await self._mover.fetch(attempt, self.source, source_blocks, blocks, groups)
        except CorruptPieceError as error:
            self._lost.set()
            raise CannotMapError(f"the source cannot be read any more: {error}") from None


async def joined_pool(mover: AgentMover, name: str, source: str, stream: FrameStream) -> JoinedPool:
    """What the owner shows over the stream, once a probe of it reads right. `name`: our
    incarnation. CannotMapError if it cannot be read; ProtocolError for what is no pool."""
    pool, _ = await stream.receive()
    if isinstance(pool, Refused):  # a release before nixl
        raise CannotMapError("the source only sends its blocks")
    if isinstance(pool, Pool) and pool.problem:
        raise CannotMapError(f"at the source, {pool.problem}")
    if not isinstance(pool, Pool) or pool.num_blocks < 1:
        raise ProtocolError("the source shows no pool")
    if len(pool.card) > MAX_CARD_BYTES:
        raise CannotMapError(TOO_LONG)
    try:
        await mover.join(name, source, pool.num_blocks, pool.card)
        probed = await mover.probe(source)
        if pack_words([probed.digest]) != pool.probe:
            raise CannotMapError("a probe of the source's pool read other bytes")
    except BaseException as error:
        with contextlib.suppress(PeerLostError):  # some ranks may have joined it, or this one may
            await mover.unmap(source)
        if isinstance(error, PeerLostError):
            raise CannotMapError(str(error)) from None
        if isinstance(error, CorruptPieceError):
            raise CannotMapError(f"a probe of the source's pool failed: {error}") from None
        raise
    return JoinedPool(source, mover, probed)


class RegisteredPool:
    """Keeps the promise of `shared.transfer.blocks.progress.Served`."""

    def __init__(
        self,
        memory: KVMemory,
        mover: AgentMover,
        name: str,
        gives: Gives | None = None,
        num_ranks: int = 1,
    ) -> None:
        """`name`: our incarnation. `gives`: for readers that link to it; default: none can.
        `num_ranks`: that hold the blocks."""
        self._gives = gives
        self._memory = memory
        self._mover = mover
        self._name = name
        self._probe = shown_probe(memory, num_ranks)

    async def send(self, stream: FrameStream, offer: LiveOffer, part: Part) -> None:
        raise ProtocolError("this source sends no blocks; its pool is to be read")

    async def show_pool(self, stream: FrameStream) -> None:
        card, problem = b"", ""
        try:
            card = await self._mover.show(self._name)
        except PeerLostError as error:
            problem = str(error)
        if len(card) > MAX_CARD_BYTES:
            card, problem = b"", TOO_LONG
        link = self._gives.link if self._gives else ""
        await stream.send(Pool(self._memory.num_blocks, self._probe, card, problem, link=link))
        await (self._gives.serve(stream) if self._gives else stream.until_closed())
