"""Copies between pools in host memory."""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from shared.kv.columns import Words
from shared.kv.digest import BlockDigests, digest_of
from shared.kv.layer_groups import GroupRange, layer_groups
from shared.kv.memory import KVMemory
from shared.kv.peer_memory import PeerBlocks
from shared.kv.probe import MAX_PROBE_BYTES, Probed, probe_bytes
from shared.mover.copies import CopyError, Mark, Region, Regions
from shared.mover.runs import joined

DIGEST_BYTES = 2 * 2**20
"""copied and then digested in a thread while the next bytes are copied"""
NUM_DIGESTERS = 2


class HostCopies:
    """Keeps the promise of `shared.mover.copies.Copies` for a pool that is host memory."""

    def __init__(self, memory: KVMemory) -> None:
        self._layout = memory.layout
        self._groups = layer_groups(memory.layout)
        self._pool = memory.rows()
        self._digests = BlockDigests.of_pool(memory)
        self._threads = ThreadPoolExecutor(NUM_DIGESTERS, "kv-digest")
        self._peers: dict[str, PeerBlocks] = {}
        self._probe_copy = np.ones(MAX_PROBE_BYTES, np.uint8)
        digest_of(self._probe_copy)  # the first of a process is slow: not while a pull waits

    def regions(self) -> Regions:
        num_bytes = self._pool.nbytes + probe_bytes(self._pool.nbytes)
        pool = Region(self._pool.ctypes.data, num_bytes)
        room = Region(self._probe_copy.ctypes.data, self._probe_copy.nbytes)
        return Regions("DRAM", 0, pool, room, self._groups)

    def wait(self, after: Mark) -> None:
        """A step on a CPU has ended before anything else is asked of the engine."""

    def read_digest(self, num_bytes: int) -> int:
        return digest_of(self._probe_copy[:num_bytes])

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

    def probe(self, source: str) -> Probed:
        peer = self._peers.get(source)
        if peer is None:
            raise CopyError("the source's pool is not mapped")
        copy = self._probe_copy[: len(peer.probe)]
        copy.fill(0)
        start_s = time.perf_counter()
        np.copyto(copy, peer.probe)
        seconds = time.perf_counter() - start_s
        return Probed(digest_of(copy), len(copy), seconds)

    def fetch(
        self,
        source: str,
        source_blocks: Sequence[int],
        blocks: Sequence[int],
        groups: GroupRange,
        after: Mark,
    ) -> Words:
        del after  # see `wait`
        peer = self._peers.get(source)
        if peer is None:
            raise CopyError("the source's pool is not mapped")
        if source_blocks and max(source_blocks) >= peer.num_blocks:
            raise CopyError("the source names a block that its pool does not have")
        span = self._groups.span(groups)
        digesting: list[Future[Words]] = []
        for some in self._turns(len(blocks), groups):
            for run in joined(source_blocks[some], blocks[some]):
                rows = peer.rows[run.source_block : run.source_block + run.num_blocks, span]
                np.copyto(self._pool[run.block : run.block + run.num_blocks, span], rows)
            digesting.append(self._threads.submit(self._digests.of, blocks[some], groups))
        peer.forget_pages()
        return _joined(digesting, groups)

    def stage(self, blocks: Sequence[int], groups: GroupRange, offset: int) -> None:
        raise CopyError("blocks in host memory are sent from where they lie")

    def fill(self, blocks: Sequence[int], groups: GroupRange, offset: int, after: Mark) -> Words:
        raise CopyError("blocks in host memory are received where they lie")

    def digests(self, blocks: Sequence[int], groups: GroupRange, after: Mark) -> Words:
        del after  # the caller has waited
        digesting = [
            self._threads.submit(self._digests.of, blocks[some], groups)
            for some in self._turns(len(blocks), groups)
        ]
        return _joined(digesting, groups)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        for source in list(self._peers):
            self.unmap(source)

    def _turns(self, num_blocks: int, groups: GroupRange) -> Iterator[slice]:
        step = max(1, DIGEST_BYTES // self._groups.num_bytes(groups))
        for start in range(0, num_blocks, step):
            yield slice(start, start + step)


def _joined(digesting: Sequence[Future[Words]], groups: GroupRange) -> Words:
    found = [done.result() for done in digesting]
    return np.concatenate(found) if found else np.empty((0, groups.num), np.uint64)
