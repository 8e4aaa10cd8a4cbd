"""The memory transport with every step of it, half-read blocks included, taken by the test."""

import asyncio
from collections.abc import Sequence

import numpy as np

from shared.kv.columns import Words
from shared.kv.digest import BlockDigests
from shared.kv.layer_groups import GroupRange
from shared.kv.memory import KVMemory
from shared.transfer.digest_threads import DigestThreads
from shared.transfer.offers import OfferTable
from tests.support.fakes.manual_clock import ManualClock
from tests.support.fakes.memory_transport import MemoryNetwork, MemoryTransport


class Gates:
    """Transfers stand still at each point they reach until `open` lets one of them go on."""

    def __init__(self) -> None:
        self.waiting: list[asyncio.Future[None]] = []
        self.passed: dict[str, int] = {}

    async def reach(self, point: str) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append(future)
        try:
            await future
        finally:
            if future in self.waiting:
                self.waiting.remove(future)
        self.passed[point] = self.passed.get(point, 0) + 1

    def open(self, choice: int) -> None:
        """Let the transfer that `choice` picks go on to its next point."""
        if self.waiting:
            self.waiting.pop(choice % len(self.waiting)).set_result(None)


class InlineDigests(DigestThreads):
    """Digests at once, so that a run depends on its steps alone."""

    def __init__(self, memory: KVMemory) -> None:
        self.blocks = BlockDigests.of_pool(memory)

    def digests(
        self, block_ids: Sequence[int], groups: GroupRange, step: int | None = None
    ) -> "asyncio.Future[Words]":
        """A step has always been run."""
        del step
        future = asyncio.get_running_loop().create_future()
        future.set_result(self.blocks.of(block_ids, groups))
        return future

    def close(self) -> None:
        pass


class NoDigests(BlockDigests):
    """Every block looks the same."""

    def of(self, block_ids: Sequence[int], groups: GroupRange) -> Words:
        return np.zeros((len(block_ids), groups.num), np.uint64)


class SteppedTransport(MemoryTransport):
    """`MemoryTransport` that waits at its gates wherever `tcp` would send or receive."""

    def __init__(
        self,
        memory: KVMemory,
        incarnation: str,
        network: MemoryNetwork,
        clock: ManualClock,
        gates: Gates,
    ) -> None:
        super().__init__(memory, incarnation, network, clock=clock)
        self._threads.close()
        self._threads = self._inline = InlineDigests(memory)
        self.table = OfferTable(memory, self.limits.lease_s, clock, self._threads)
        self._gates = gates

    def blind(self) -> None:
        """From now on no damage is seen by its digest."""
        self.digests = self._inline.blocks = NoDigests.of_pool(self.memory)

    async def reach(self, point: str) -> bool:
        await self._gates.reach(point)
        return True
