"""Blocks that are copied out of the source's pool, which is mapped here.

Whether blocks are fresh is seen in the mapped generations.
"""

import os
from collections.abc import Sequence

import numpy as np

from shared.errors import ProtocolError, StaleBlocksError
from shared.kv.columns import Words
from shared.kv.layer_groups import GroupRange
from shared.kv.layout import KVLayout
from shared.kv.memory import KVMemory
from shared.protocol import Attempt
from shared.transfer.blocks.fetches import Fetches
from shared.transfer.blocks.ledger import PullLedger
from shared.transfer.blocks.manifest import Part, Tags
from shared.transfer.blocks.mapping import Mapping
from shared.transfer.blocks.progress import Progress
from shared.transfer.blocks.standing import Standing
from shared.transfer.blocks.views import shown_probe
from shared.transfer.frame_stream import FrameStream
from shared.transfer.frames import Frame, Pool
from shared.transfer.limits import TransferLimits
from shared.transfer.offers import LiveOffer
from shared.transfer.traffic import Traffic
from shared.transfer.transport import PullRequest


class _WatchedPool:
    """Keeps the promise of `Fetchable`. With the last of what is missing the engine may begin from
    token 1, ahead of the verdict. When it has, and blocks would have to be read again, the pull is
    stale."""

    def __init__(self, ledger: PullLedger) -> None:
        self.mapping: Mapping
        """as it stands now"""
        self._ledger = ledger
        self._may_begin = False

    async def fetch(
        self, attempt: Attempt, tags: Tags, blocks: Sequence[int], groups: GroupRange
    ) -> Words:
        if self._may_begin and not await self.mapping.give_up(attempt):
            raise StaleBlocksError("blocks changed after the engine had begun with them")
        last = None
        if self.mapping.is_watched:
            last = self._ledger.last_fetch(len(blocks) * groups.num)
        digests = await self.mapping.fetch(attempt, tags, blocks, groups, last)
        self._may_begin = last is not None and np.array_equal(digests, last.digests)
        return digests


class CopiedReads:
    """Keeps the promise of `shared.transfer.blocks.progress.Reads`."""

    name = "mapped"

    def __init__(
        self,
        progress: Progress,
        mappings: Standing[Mapping],
        layout: KVLayout,
        traffic: Traffic,
        limits: TransferLimits,
    ) -> None:
        self.in_bursts = limits.in_bursts
        self._request = progress.request
        self._mappings = mappings
        self._pool = _WatchedPool(progress.ledger)
        self._fetches = Fetches(progress, self._pool_of, layout, traffic, limits)

    async def bring(self) -> None:
        await self._fetches.bring()

    async def take(self, frame: Frame, payload_bytes: int) -> None:
        del payload_bytes
        raise ProtocolError(f"a source that is mapped sends no {type(frame).__name__}")

    async def is_fresh(self, tags: Tags) -> bool:
        return (await self._mappings.of(self._request)).is_fresh(tags)

    async def settle(self) -> None:
        """Nothing to wait for: a copy that is cancelled ends before its caller goes on (R18)."""

    async def _pool_of(self, request: PullRequest) -> _WatchedPool:
        self._pool.mapping = await self._mappings.of(request)
        return self._pool


class ShownPool:
    """Keeps the promise of `shared.transfer.blocks.progress.Served`."""

    def __init__(self, memory: KVMemory, pools: Sequence[int] = ()) -> None:
        """`pools`: descriptors of what a mover maps, one for each rank, where blocks do not lie in
        `memory`'s file; they stay the caller's."""
        self.memory = memory
        self._pools = pools
        self.num_ranks = max(1, len(pools))
        self._probe = shown_probe(memory, self.num_ranks)

    @property
    def can_be_mapped(self) -> bool:
        """Whether there is anything to show."""
        return self.memory.holds_blocks or len(self._pools) > 0

    async def send(self, stream: FrameStream, offer: LiveOffer, part: Part) -> None:
        raise ProtocolError("this source sends no blocks; its pool is to be mapped")

    async def show_pool(self, stream: FrameStream) -> None:
        await stream.send(Pool(self.memory.num_blocks, self._probe, has_first_tokens=True))
        table = self.memory.read_only()
        try:
            await stream.pass_descriptors([table, *self._pools])
        finally:
            os.close(table)
        await stream.until_closed()
