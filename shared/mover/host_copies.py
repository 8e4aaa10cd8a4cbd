"""Copies between pools in host memory."""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch

from shared.kv.columns import Words
from shared.kv.digest import BlockDigests, digest_of
from shared.kv.layer_groups import GroupRange
from shared.kv.memory import KVMemory
from shared.kv.probe import Probed
from shared.kv.share import KVShare
from shared.mover.copies import (
    PROBE_ROOM_BYTES,
    CopyError,
    Mark,
    Regions,
    host_regions,
)
from shared.mover.host_sources import HostSource, HostSources
from shared.mover.runs import joined

DIGEST_BYTES = 2 * 2**20
"""copied and then digested in a thread while the next bytes are copied"""
NUM_DIGESTERS = 2


class HostCopies:
    """Keeps the promise of `shared.mover.copies.Copies` for a pool that is host memory."""

    def __init__(self, memory: KVMemory) -> None:
        self.share = KVShare(memory.layout)
        self._groups = self.share.groups
        self._pool = memory.rows()
        self._probe = np.frombuffer(memory.probe, np.uint8)
        self._digests = BlockDigests.of_pool(memory)
        self._threads = ThreadPoolExecutor(NUM_DIGESTERS, "kv-digest")
        self._sources = HostSources(memory.layout)
        self._probe_copy = np.empty(0, np.uint8)
        """not that of mapped sources: reads of another host fill it meanwhile"""

    def regions(self) -> Regions:
        self._probe_copy = np.empty(PROBE_ROOM_BYTES, np.uint8)
        return host_regions(self._pool, self._probe_copy)

    def wait(self, after: Mark) -> None:
        """A step on a CPU has ended before anything else is asked of the engine."""

    def read_digest(self, part: slice) -> int:
        return digest_of(self._probe_copy[part])

    def map(self, source: str, num_blocks: int, descriptors: Sequence[int]) -> None:
        self._sources.map(source, num_blocks, descriptors)

    def unmap(self, source: str) -> None:
        self._sources.unmap(source)

    def probe(self, source: str) -> Probed:
        return self._sources.probe(source)

    def fetch(
        self,
        source: str,
        source_blocks: Sequence[int],
        blocks: Sequence[int],
        groups: GroupRange,
        after: Mark,
    ) -> Words:
        del after  # see `wait`
        found = self._sources.with_blocks(source, source_blocks)
        digesting: list[Future[Words]] = []
        for some in self._turns(len(blocks), groups):
            self._copy(found, source_blocks[some], blocks[some], groups)
            digesting.append(self._threads.submit(self._digests.of, blocks[some], groups))
        found.forget_pages()
        return _joined(digesting, groups)

    def stage(self, blocks: Sequence[int], groups: GroupRange, offset: int) -> None:
        raise CopyError("blocks in host memory are sent from where they lie")

    def fill(self, blocks: Sequence[int], groups: GroupRange, offset: int, after: Mark) -> Words:
        raise CopyError("blocks in host memory are received where they lie")

    def new_room(self, num_bytes: int) -> torch.Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8)

    def gather(self, blocks: Sequence[int], groups: GroupRange, room: torch.Tensor) -> None:
        rows = room.numpy().reshape(len(blocks), -1)
        rows[:] = self._pool[np.asarray(blocks), self._groups.span(groups)]

    def gather_probe(self, room: torch.Tensor) -> int:
        room.numpy()[: len(self._probe)] = self._probe
        return len(self._probe)

    def scatter(
        self, blocks: Sequence[int], groups: GroupRange, room: torch.Tensor, after: Mark
    ) -> Words:
        del after  # see `wait`
        rows = room.numpy().reshape(len(blocks), -1)
        self._pool[np.asarray(blocks), self._groups.span(groups)] = rows
        return self.digests(blocks, groups, None)

    def digests(self, blocks: Sequence[int], groups: GroupRange, after: Mark) -> Words:
        del after  # the caller has waited
        digesting = [
            self._threads.submit(self._digests.of, blocks[some], groups)
            for some in self._turns(len(blocks), groups)
        ]
        return _joined(digesting, groups)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._sources.close()

    def _copy(
        self, source: HostSource, theirs: Sequence[int], ours: Sequence[int], groups: GroupRange
    ) -> None:
        if source.rows is None:
            source.copy(theirs, ours, groups, self._pool, self.share)
            return
        span = self._groups.span(groups)
        for run in joined(theirs, ours).each():
            rows = source.rows[run.source_block : run.source_block + run.num_blocks, span]
            np.copyto(self._pool[run.block : run.block + run.num_blocks, span], rows)

    def _turns(self, num_blocks: int, groups: GroupRange) -> Iterator[slice]:
        step = max(1, DIGEST_BYTES // self._groups.num_bytes(groups))
        for start in range(0, num_blocks, step):
            yield slice(start, start + step)


def _joined(digesting: Sequence[Future[Words]], groups: GroupRange) -> Words:
    found = [done.result() for done in digesting]
    return np.concatenate(found) if found else np.empty((0, groups.num), np.uint64)
