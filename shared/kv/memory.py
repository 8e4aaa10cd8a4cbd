"""The host-visible KV pool: block bytes and a generation per block, shared by two processes.

The engine process creates it and writes blocks; the io process of the same worker maps it to
serve and to fill blocks. `generation[b]` is bumped *before* block b is overwritten, so a reader
that saw the same generation before and after its copy holds one consistent block (a sequence
lock; safety needs no clock and no lock across processes).
"""

import contextlib
import fcntl
import mmap
import os
import weakref
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shared.kv.layout import KVLayout

_PAGE = 4096
_FAULT_AROUND = 64 * 1024
"""bytes around a page that Linux maps along when the page is read"""


@dataclass(frozen=True)
class Piece:
    """Consecutive blocks of one attempt that are complete and visible, ready to be read."""

    first_block: int
    """logical index of the first block in the sequence"""
    block_ids: tuple[int, ...]
    generations: tuple[int, ...]
    """generation of each block when it was written"""


class KVMemory:
    """`num_blocks` blocks of `layout.block_bytes` and their generations in one mapping. Owns `fd`,
    which is closed when nobody uses the pool any more."""

    def __init__(self, layout: KVLayout, num_blocks: int, fd: int) -> None:
        self.layout = layout
        self.num_blocks = num_blocks
        self.fd = fd
        weakref.finalize(self, os.close, fd)
        self._table_bytes = table = table_bytes(num_blocks)
        self._map = mmap.mmap(fd, table + num_blocks * layout.block_bytes)
        view = memoryview(self._map)
        self.generations = view[: num_blocks * 8].cast("Q")
        self.blocks = view[table:]

    @classmethod
    def create(cls, layout: KVLayout, num_blocks: int) -> "KVMemory":
        """A new pool, zero-filled; pages take memory only once written. Its size is final, so
        that whoever maps it can rely on it."""
        fd = os.memfd_create("baton-kv", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, table_bytes(num_blocks) + num_blocks * layout.block_bytes)
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
        return cls(layout, num_blocks, fd)

    def read_only(self) -> int:
        """A new descriptor of the pool that nothing can be written through."""
        return os.open(f"/proc/self/fd/{self.fd}", os.O_RDONLY | os.O_CLOEXEC)

    def block(self, block_id: int) -> memoryview:
        """Writable bytes of one block."""
        size = self.layout.block_bytes
        return self.blocks[block_id * size : (block_id + 1) * size]

    def rows(self) -> NDArray[np.uint8]:
        """[num_blocks, block bytes], writable, no copy."""
        num_bytes = self.num_blocks * self.layout.block_bytes
        flat: NDArray[np.uint8] = np.frombuffer(self.blocks, np.uint8)
        return flat[:num_bytes].reshape(self.num_blocks, self.layout.block_bytes)

    def unmap_pages(self, block_ids: Iterable[int]) -> None:
        """This process is done with these blocks for now: their bytes stay, also for the other
        process, but no longer count as memory of this one. Touching them again is fine."""
        for block_id in block_ids:
            start = self._table_bytes + block_id * self.layout.block_bytes
            first = max(0, start - _FAULT_AROUND) // mmap.PAGESIZE * mmap.PAGESIZE
            end = min(start + self.layout.block_bytes + _FAULT_AROUND, len(self._map))
            with contextlib.suppress(OSError):
                self._map.madvise(mmap.MADV_DONTNEED, first, end - first)

    def discard(self, block_id: int) -> None:
        """Give back the memory of the pages that lie wholly in one block; for every process that
        maps them they read as zeros, until written again."""
        size = self.layout.block_bytes
        start = self._table_bytes + block_id * size
        first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        end = (start + size) // mmap.PAGESIZE * mmap.PAGESIZE
        if end > first:
            # A sandbox's kernel may not know how: then only the memory stays occupied.
            with contextlib.suppress(OSError):
                self._map.madvise(mmap.MADV_REMOVE, first, end - first)


def table_bytes(num_blocks: int) -> int:
    """Where the blocks begin: after the generations, on a page of their own."""
    return -(-num_blocks * 8 // _PAGE) * _PAGE
