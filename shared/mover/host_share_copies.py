"""Copies into and out of a rank's share of a pool in host memory."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from shared.kv.columns import Words
from shared.kv.digest import BlockDigests, digest_of
from shared.kv.head_view import heads_of
from shared.kv.layer_groups import GroupRange, layer_groups
from shared.kv.memory import KVMemory
from shared.kv.probe import Probed
from shared.kv.share import KVShare
from shared.mover.copies import (
    NOT_LINKED,
    PROBE_ROOM_BYTES,
    CopyError,
    Mark,
    Regions,
    host_regions,
)
from shared.mover.host_sources import HostSources

if TYPE_CHECKING:
    import torch


class HostShareCopies:
    """Keeps the promise of `shared.mover.copies.Copies` for a rank of a model that several share.

    Blocks lie whole in the arena: each rank takes its heads out of there, or puts them there."""

    def __init__(self, rows: NDArray[np.uint8], memory: KVMemory, share: KVShare) -> None:
        """`rows`: [num_blocks, bytes of the share], the rank's pool, which a probe follows.
        `memory`: has the arena."""
        self.share = share
        self._rows = rows
        self._pool = heads_of(share, rows)
        self._sources = HostSources(share.whole)
        self._arena: NDArray[np.uint8] = np.frombuffer(memory.arena, np.uint8)
        self._digests = BlockDigests(rows, share)
        self._probe_copy = np.empty(0, np.uint8)

    def regions(self) -> Regions:
        self._probe_copy = np.empty(PROBE_ROOM_BYTES, np.uint8)
        return host_regions(self._rows, self._probe_copy)

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
        found.copy(source_blocks, blocks, groups, self._rows, self.share)
        found.forget_pages()
        return self._digests.of(blocks, groups)

    def stage(self, blocks: Sequence[int], groups: GroupRange, offset: int) -> None:
        ids, layers = np.asarray(blocks, np.int64), self.share.layers(groups)
        self._room(len(blocks), groups, offset)[:, :, :, self.share.heads] = self._pool[ids, layers]

    def fill(self, blocks: Sequence[int], groups: GroupRange, offset: int, after: Mark) -> Words:
        del after  # see `wait`
        ids, layers = np.asarray(blocks, np.int64), self.share.layers(groups)
        self._pool[ids, layers] = self._room(len(blocks), groups, offset)[:, :, :, self.share.heads]
        return self._digests.of(blocks, groups)

    def new_room(self, num_bytes: int) -> "torch.Tensor":
        raise CopyError(NOT_LINKED)

    def gather(self, blocks: Sequence[int], groups: GroupRange, room: "torch.Tensor") -> None:
        raise CopyError(NOT_LINKED)

    def gather_probe(self, room: "torch.Tensor") -> int:
        raise CopyError(NOT_LINKED)

    def scatter(
        self, blocks: Sequence[int], groups: GroupRange, room: "torch.Tensor", after: Mark
    ) -> Words:
        raise CopyError(NOT_LINKED)

    def digests(self, blocks: Sequence[int], groups: GroupRange, after: Mark) -> Words:
        del after  # the caller has waited
        return self._digests.of(blocks, groups)

    def close(self) -> None:
        self._sources.close()

    def _room(self, num_blocks: int, groups: GroupRange, offset: int) -> NDArray[np.uint8]:
        """[blocks, layers, planes, all heads, bytes of a head], writable. CopyError if the arena
        ends before."""
        share, whole = self.share, self.share.whole
        size = layer_groups(whole).num_bytes(groups)
        if offset < 0 or offset + num_blocks * size > len(self._arena):
            raise CopyError("the arena is smaller than what is to be staged")
        room = self._arena[offset : offset + num_blocks * size]
        return room.reshape(num_blocks, -1, whole.planes, whole.num_kv_heads, share.head_bytes)
