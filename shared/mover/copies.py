"""What copies blocks on one kind of device."""

from collections.abc import Sequence
from typing import Any, Protocol

from shared.errors import BatonError
from shared.kv.columns import Words
from shared.kv.layer_groups import GroupRange

Mark = Any
"""work of the device that comes first, as the device names it; None: nothing does"""


class CopyError(BatonError):
    """A pool cannot be mapped, or blocks cannot be copied from it; the worker goes on."""


class Copies(Protocol):
    """Called by the mover's thread only. Each call returns once what it does is done."""

    def map(self, source: str, num_blocks: int, descriptors: Sequence[int]) -> None:
        """Map a source's pool, read-only. Takes the descriptors over and closes them. CopyError
        if they are no pool of this layout and size."""

    def unmap(self, source: str) -> None:
        """Give the mapping back; nothing happens if there is none."""

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

    def digests(self, blocks: Sequence[int], groups: GroupRange, after: Mark) -> Words:
        """[blocks, groups], of blocks of our own pool, behind the work of `after`."""

    def close(self) -> None:
        """Unmap everything."""
