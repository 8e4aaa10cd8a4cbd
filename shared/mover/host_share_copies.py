"""Copies between the arena and a rank's share of a pool, both in host memory."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shared.kv.columns import Words
from shared.kv.digest import BlockDigests
from shared.kv.layer_groups import GroupRange
from shared.kv.memory import KVMemory
from shared.kv.probe import Probed
from shared.kv.share import KVShare
from shared.mover.copies import NOT_READ, CopyError, Mark, Regions


class HostShareCopies:
    """Keeps the promise of `shared.mover.copies.Copies` for a rank of a model that several share.

    Blocks lie whole in the arena: each rank takes its heads out of there, or puts them there."""

    def __init__(self, rows: NDArray[np.uint8], memory: KVMemory, share: KVShare) -> None:
        """`rows`: [num_blocks, bytes of the share], the rank's pool. `memory`: has the arena."""
        self._share = share
        self._pool = rows.reshape(len(rows), *_shape(share, share.layout.num_kv_heads))
        self._arena: NDArray[np.uint8] = np.frombuffer(memory.arena, np.uint8)
        self._digests = BlockDigests(rows, share)

    def regions(self) -> Regions:
        raise CopyError(NOT_READ)

    def wait(self, after: Mark) -> None:
        """A step on a CPU has ended before anything else is asked of the engine."""

    def read_digest(self, num_bytes: int) -> int:
        raise CopyError(NOT_READ)

    def map(self, source: str, num_blocks: int, descriptors: Sequence[int]) -> None:
        raise CopyError(NOT_READ)

    def unmap(self, source: str) -> None:
        """None is mapped."""

    def probe(self, source: str) -> Probed:
        raise CopyError(NOT_READ)

    def fetch(
        self,
        source: str,
        source_blocks: Sequence[int],
        blocks: Sequence[int],
        groups: GroupRange,
        after: Mark,
    ) -> Words:
        raise CopyError(NOT_READ)

    def stage(self, blocks: Sequence[int], groups: GroupRange, offset: int) -> None:
        ids, layers = np.asarray(blocks, np.int64), self._layers(groups)
        self._room(len(blocks), groups, offset)[:, :, :, self._share.heads] = self._pool[
            ids, layers
        ]

    def fill(self, blocks: Sequence[int], groups: GroupRange, offset: int, after: Mark) -> Words:
        del after  # see `wait`
        ids, layers = np.asarray(blocks, np.int64), self._layers(groups)
        self._pool[ids, layers] = self._room(len(blocks), groups, offset)[
            :, :, :, self._share.heads
        ]
        return self._digests.of(blocks, groups)

    def digests(self, blocks: Sequence[int], groups: GroupRange, after: Mark) -> Words:
        del after  # the caller has waited
        return self._digests.of(blocks, groups)

    def close(self) -> None:
        """Nothing is mapped."""

    def _layers(self, groups: GroupRange) -> slice:
        ends = (0, *self._share.groups.layer_ends)
        return slice(ends[groups.first], ends[groups.end])

    def _room(self, num_blocks: int, groups: GroupRange, offset: int) -> NDArray[np.uint8]:
        """[blocks, layers, planes, all heads, bytes of a head], writable. CopyError if the arena
        ends before."""
        layers, whole = self._layers(groups), self._share.whole
        _, *shape = _shape(self._share, whole.num_kv_heads)
        num_bytes = num_blocks * (layers.stop - layers.start) * whole.layer_bytes
        if offset < 0 or offset + num_bytes > len(self._arena):
            raise CopyError("the arena is smaller than what is to be staged")
        room = self._arena[offset : offset + num_bytes]
        return room.reshape(num_blocks, layers.stop - layers.start, *shape)


def _shape(share: KVShare, num_heads: int) -> tuple[int, int, int, int]:
    """[layers, planes, heads, bytes of a head] of a block of `num_heads`."""
    whole = share.whole
    return whole.num_layers, whole.planes, num_heads, share.head_bytes
