"""The movers of all ranks of a model, asked as one.

A rank's mover has the rank's heads of each block: bytes that are staged come together in the arena,
bytes that are filled are taken apart there, and the digests of the ranks add up to those of whole
blocks (`shared.kv.share`). Ranks that hold copies of the same heads must agree: what they do not
agree about has NO_DIGEST. Prefill may have taken the block for something else between two copies,
which is no damage.

Rank 0 goes first wherever steps have to be waited for, and the others wait for none: rank 0 has its
own marks only once every rank has written what they stand for (`shared.engine.handover.marks`).
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from shared.errors import PeerLostError
from shared.kv.columns import Words
from shared.kv.layer_groups import GroupRange
from shared.kv.probe import Probed, odd_one
from shared.kv.share import KVShare
from shared.mover.agent import pack_cards, unpack_cards
from shared.mover.client import MoverClient
from shared.mover.copies import NOT_LINKED
from shared.mover.messages import LastFetch
from shared.protocol import Attempt
from shared.tasks import settled

Result = TypeVar("Result")
NO_DIGEST = 0
"""of no block: one is as likely as two blocks with the same digest"""


class RankMovers:
    """Does what `MoverClient` does, but for links, and may be cancelled as it."""

    def __init__(self, movers: Sequence[MoverClient], shares: Sequence[KVShare]) -> None:
        """One for each rank, in order."""
        self._movers = movers
        self._copies = [share.copy for share in shares]
        firsts = [mover for mover, share in zip(movers, shares, strict=True) if not share.copy]
        self._lead, *self._others = firsts
        """that hold all heads between them, each once"""

    async def map(self, source: str, num_blocks: int, descriptors: Sequence[int]) -> None:
        """Every rank maps another worker's pool. The descriptors stay the caller's. PeerLostError
        if it cannot be mapped."""
        await _all(mover.map(source, num_blocks, descriptors) for mover in self._movers)

    async def watch(self, source: str, num_blocks: int, table: int) -> None:
        """The step loop is that of rank 0."""
        await self._lead.watch(source, num_blocks, table)

    async def give_up(self, attempt: Attempt) -> bool:
        return await self._lead.give_up(attempt)

    async def unmap(self, source: str) -> None:
        """Returns once nothing of that pool is mapped."""
        await _all(mover.unmap(source) for mover in self._movers)

    async def probe(self, source: str) -> Probed:
        """What a rank reads that reads otherwise than rank 0, or what rank 0 reads."""
        return odd_one(await _all(mover.probe(source) for mover in self._movers))

    async def fetch(
        self,
        attempt: Attempt,
        source: str,
        source_blocks: Sequence[int],
        blocks: Sequence[int],
        groups: GroupRange,
        last: LastFetch | None = None,
    ) -> Words:
        """Every rank brings its heads of layer groups of a mapped or joined pool into `blocks`; the
        digests [blocks, groups] of what lies there now. CorruptPieceError if it could not be done.
        `last`: as with one rank, once every rank has its heads."""
        digests = await self._filled(
            lambda mover: mover.fetch(attempt, source, source_blocks, blocks, groups)
        )
        if last is not None and np.array_equal(digests, last.digests):
            await self._lead.expect(attempt, source, last.token_1)
        return digests

    async def show(self, name: str) -> bytes:
        """The cards of all ranks. PeerLostError if the pool of one cannot be read."""
        packed = await _all(mover.show(name) for mover in self._movers)
        return pack_cards([card for cards in packed for card in unpack_cards(cards)])

    async def join(self, name: str, source: str, num_blocks: int, card: bytes) -> None:
        """Every rank the source's ranks that have heads for it. PeerLostError if one cannot; others
        may have done it then, until `unmap`."""
        await _all(mover.join(name, source, num_blocks, card) for mover in self._movers)

    async def invite(self, peer: str, host: str) -> bytes:
        raise PeerLostError(NOT_LINKED)

    async def accept(self, source: str, num_blocks: int, card: bytes, host: str) -> bytes:
        raise PeerLostError(NOT_LINKED)

    async def meet(self, peer: str, card: bytes) -> None:
        raise PeerLostError(NOT_LINKED)

    async def give(self, peer: str, blocks: Sequence[int], groups: GroupRange) -> None:
        raise PeerLostError(NOT_LINKED)

    async def stage(self, blocks: Sequence[int], groups: GroupRange, room: slice) -> None:
        """Pool to arena. CorruptPieceError if it could not be done."""
        await _all(mover.stage(blocks, groups, room) for mover in (self._lead, *self._others))

    async def fill(
        self, attempt: Attempt, blocks: Sequence[int], groups: GroupRange, room: slice
    ) -> Words:
        """Arena to reserved blocks; the digests [blocks, groups] of what lies there now.
        CorruptPieceError if it could not be done."""
        return await self._filled(lambda mover: mover.fill(attempt, blocks, groups, room))

    async def digests(self, blocks: Sequence[int], groups: GroupRange, step: int | None) -> Words:
        """[blocks, groups], of our own pool, now; of a step, of the first groups only, one at
        least, once it has written them."""
        found = await self._lead.digests(blocks, groups, step)
        written = GroupRange(groups.first, found.shape[1])
        others = await _all(mover.digests(blocks, written, None) for mover in self._others)
        return sum(others, found)

    def close(self) -> None:
        """Safe to call twice. The movers end."""
        for mover in self._movers:
            mover.close()

    async def _filled(self, ask: Callable[[MoverClient], Coroutine[Any, Any, Words]]) -> Words:
        """The digests of what all ranks fill, rank 0 before the others."""
        lead, *others = self._movers
        found = [await ask(lead)]
        found += await _all(ask(mover) for mover in others)
        first, *later = [self._sum(found, copy) for copy in sorted(set(self._copies))]
        for other in later:
            first = np.where(first == other, first, NO_DIGEST)
        return first

    def _sum(self, found: Sequence[Words], copy: int) -> Words:
        """Of the ranks that hold this copy of the heads; modulo 2**64."""
        held = [words for words, own in zip(found, self._copies, strict=True) if own == copy]
        total: Words = np.sum(held, axis=0, dtype=np.uint64)
        return total


async def _all(calls: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """Their results; returns, raises or is cancelled only once none is under way any more."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await settled(tasks)
