"""Copies out of a mapped pool that stand still, are damaged or lose their owner on purpose."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from shared.kv.memory import KVMemory
from shared.mover.host_copies import HostCopies
from tests.support.fakes.faulty_transport import Fault


class FaultyCopies(HostCopies):
    """The first block of each copy goes in two halves, with `half_read` between them."""

    def __init__(
        self,
        memory: KVMemory,
        ours: Callable[[], Any],
        source: Callable[[], Any],
    ) -> None:
        """`ours`: the FaultyMappedTransport whose plan strikes at `read`; `source`: the one whose
        plan strikes at `blocks` and `half_read`. Both live on
        the running event loop; the mover's thread waits for them."""
        super().__init__(memory)
        self._ours = ours
        self._source = source
        self._loop = asyncio.get_running_loop()

    def fetch(
        self, source: str, source_blocks: Sequence[int], blocks: Sequence[int], after: Any
    ) -> tuple[int, ...]:
        self._strike(self._ours(), "read")
        fault = self._strike(self._source(), "blocks")
        half = self._layout.block_bytes // 2
        if (peer := self._peers.get(source)) is not None:
            self._pool[blocks[0], :half] = peer.rows[source_blocks[0], :half]
        self._strike(self._source(), "half_read")
        if peer is not None:
            self._pool[blocks[0], half:] = peer.rows[source_blocks[0], half:]
        digests = super().fetch(source, source_blocks[1:], blocks[1:], after)
        if fault is Fault.CORRUPT:
            self._pool[blocks[0], -1] ^= 1
        return (*self._digests.of(blocks[:1]), *digests)

    def _strike(self, transport: Any, point: str) -> Fault:
        struck: Fault = asyncio.run_coroutine_threadsafe(
            transport.strike(point), self._loop
        ).result()
        return struck
