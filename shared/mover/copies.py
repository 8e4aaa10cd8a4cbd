"""What copies blocks on one kind of device."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from shared.errors import BatonError
from shared.kv.columns import Words
from shared.kv.layer_groups import GroupRange
from shared.kv.probe import MAX_PROBE_BYTES, Probed, probe_bytes
from shared.kv.share import MAX_RANKS, KVShare

if TYPE_CHECKING:
    import torch

Mark = Any
"""work of the device that comes first, as the device names it; None: nothing does"""


PROBE_ROOM_BYTES = MAX_RANKS * MAX_PROBE_BYTES
"""for the probe of each rank's pool of a source"""
NOT_LINKED = "the ranks of a model are not linked by nccl"


class CopyError(BatonError):
    """A pool cannot be mapped, or blocks cannot be copied from it; the worker goes on."""


class Source(Protocol):
    """A mapped pool."""

    num_blocks: int


AnySource = TypeVar("AnySource", bound=Source)


def with_blocks(sources: Mapping[str, AnySource], source: str, blocks: Sequence[int]) -> AnySource:
    """The one of this name. CopyError if it is not mapped, or has no such blocks."""
    found = sources.get(source)
    if found is None:
        raise CopyError("the source's pool is not mapped")
    if blocks and max(blocks) >= found.num_blocks:
        raise CopyError("the source names a block that its pool does not have")
    return found


class Region(NamedTuple):
    """A run of memory."""

    address: int
    num_bytes: int


class Regions(NamedTuple):
    """Where our pool lies, for devices that read other pools into it."""

    kind: str
    """DRAM or VRAM, as nixl calls it"""
    device: int
    pool: Region
    """its blocks and, behind them, its probe"""
    probe_room: Region
    """into which the probes of the pools of a source's ranks are read"""


def host_regions(rows: NDArray[np.uint8], probe_room: NDArray[np.uint8]) -> Regions:
    """Of a pool in host memory, which its probe follows."""
    pool = Region(rows.ctypes.data, rows.nbytes + probe_bytes(rows.nbytes))
    return Regions("DRAM", 0, pool, Region(probe_room.ctypes.data, probe_room.nbytes))


class Copies(Protocol):
    """Called by one thread of the mover only. Each call returns once what it does is done."""

    share: KVShare
    """of each block, that our pool holds"""

    def regions(self) -> Regions:
        """From now until `close`. The thread may then name our device's memory to others. CopyError
        if no other worker may read this pool."""

    def wait(self, after: Mark) -> None:
        """Until the work of `after` is done."""

    def read_digest(self, part: slice) -> int:
        """Of these bytes in the room for probes."""

    def map(self, source: str, num_blocks: int, descriptors: Sequence[int]) -> None:
        """Map the pool of each of a source's ranks, read-only. Takes the descriptors over and
        closes them. CopyError if they are no pools of this layout and size."""

    def unmap(self, source: str) -> None:
        """Give the mapping back; nothing happens if there is none."""

    def probe(self, source: str) -> Probed:
        """Copy what follows the last block of a mapped pool, and digest the copy. CopyError if the
        source is not mapped."""

    def fetch(
        self,
        source: str,
        source_blocks: Sequence[int],
        blocks: Sequence[int],
        groups: GroupRange,
        after: Mark,
    ) -> Words:
        """Copy layer groups, block after block, behind the work of `after`. Returns the digests
        [blocks, groups] of the copies. CopyError if the source is not mapped or has no such
        block."""

    def stage(self, blocks: Sequence[int], groups: GroupRange, offset: int) -> None:
        """Copy layer groups of blocks of our own pool into the arena, one block after the other
        from `offset` on. CopyError if the arena ends before, or there is none."""

    def fill(self, blocks: Sequence[int], groups: GroupRange, offset: int, after: Mark) -> Words:
        """The way back, behind the work of `after`. Returns the digests [blocks, groups] of the
        copies. CopyError as `stage`."""

    def new_room(self, num_bytes: int) -> "torch.Tensor":
        """Bytes where our pool lies, for blocks on their way. CopyError if there is no memory for
        it, or no other worker may read this pool."""

    def gather(self, blocks: Sequence[int], groups: GroupRange, room: "torch.Tensor") -> None:
        """Copy layer groups of blocks of our own pool into the room, one block after the other."""

    def gather_probe(self, room: "torch.Tensor") -> int:
        """Copy what follows the last block of our own pool; how many bytes that are."""

    def scatter(
        self, blocks: Sequence[int], groups: GroupRange, room: "torch.Tensor", after: Mark
    ) -> Words:
        """The way back, behind the work of `after`. Returns the digests [blocks, groups] of the
        copies."""

    def digests(self, blocks: Sequence[int], groups: GroupRange, after: Mark) -> Words:
        """[blocks, groups], of blocks of our own pool, behind the work of `after`."""

    def close(self) -> None:
        """Unmap everything."""
