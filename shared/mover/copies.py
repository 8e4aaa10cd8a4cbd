"""What copies blocks on one kind of device."""

from collections.abc import Sequence
from typing import Any, Protocol

from shared.errors import BatonError


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
        self, source: str, source_blocks: Sequence[int], blocks: Sequence[int], after: Any
    ) -> tuple[int, ...]:
        """Copy block after block; `after`: a mark of the steps that must end first, or None.
        Returns the digests of the copies. CopyError if the source is not mapped or has no such
        block."""

    def digests(self, blocks: Sequence[int]) -> tuple[int, ...]:
        """Of blocks of our own pool, one each."""

    def close(self) -> None:
        """Unmap everything."""
