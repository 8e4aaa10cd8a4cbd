"""Copies between pools in host memory."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.kv.digest import BlockDigests
from shared.kv.memory import KVMemory
from shared.kv.peer_memory import PeerBlocks
from shared.mover.copies import CopyError
from shared.mover.runs import joined

DIGEST_BYTES = 2 * 2**20
"""copied and then digested in a thread while the next bytes are copied"""
NUM_DIGESTERS = 2


class HostCopies:
    """Keeps the promise of `shared.mover.copies.Copies` for a pool that is host memory."""

    def __init__(self, memory: KVMemory) -> None:
        self._layout = memory.layout
        flat: NDArray[np.uint8] = np.frombuffer(memory.blocks, np.uint8)
        num_bytes = memory.num_blocks * self._layout.block_bytes
        self._pool = flat[:num_bytes].reshape(memory.num_blocks, self._layout.block_bytes)
        self._digests = BlockDigests(memory)
        self._threads = ThreadPoolExecutor(NUM_DIGESTERS, "kv-digest")
        self._peers: dict[str, PeerBlocks] = {}

    def map(self, source: str, num_blocks: int, descriptors: Sequence[int]) -> None:
        self.unmap(source)
        try:
            self._peers[source] = PeerBlocks(self._layout, num_blocks, descriptors[0])
        except (OSError, ValueError) as error:
            raise CopyError(f"the source's pool cannot be mapped: {error}") from None

    def unmap(self, source: str) -> None:
        peer = self._peers.pop(source, None)
        if peer is not None:
            peer.close()

    def fetch(
        self, source: str, source_blocks: Sequence[int], blocks: Sequence[int], after: Any
    ) -> tuple[int, ...]:
        del after  # a step on a CPU has ended before anything else is asked of the engine
        peer = self._peers.get(source)
        if peer is None:
            raise CopyError("the source's pool is not mapped")
        if source_blocks and max(source_blocks) >= peer.num_blocks:
            raise CopyError("the source names a block that its pool does not have")
        per_turn = max(1, DIGEST_BYTES // self._layout.block_bytes)
        digesting: list[Future[tuple[int, ...]]] = []
        for start in range(0, len(blocks), per_turn):
            some = blocks[start : start + per_turn]
            for run in joined(source_blocks[start : start + per_turn], some):
                rows = peer.rows[run.source_block : run.source_block + run.num_blocks]
                np.copyto(self._pool[run.block : run.block + run.num_blocks], rows)
            digesting.append(self._threads.submit(self._digests.of, some))
        peer.forget_pages()
        return tuple(digest for done in digesting for digest in done.result())

    def digests(self, blocks: Sequence[int]) -> tuple[int, ...]:
        return self._digests.of(blocks)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        for source in list(self._peers):
            self.unmap(source)
