"""The host-visible KV pool: block bytes and a generation per block, shared by two processes.

    generations | blocks | probe | first tokens     the engine computes on a CPU
    generations | arena | probe | first tokens      on a GPU, whose memory has the blocks

The engine process creates it and writes blocks; the io process of the same worker maps it to
serve and to fill blocks. The arena carries bytes of blocks between a socket and a GPU's memory.
`generation[b]` is bumped *before* block b is overwritten, so a reader that saw the same generation
before and after its copy holds one consistent block (a sequence lock; safety needs no clock and no
lock across processes). `first_tokens[b]` is where a prefill worker writes token 1 of the prompt
whose last block is b, for readers who have the rest.
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
from shared.kv.probe import probe_bytes

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

    def __init__(
        self, layout: KVLayout, num_blocks: int, fd: int, arena_bytes: int | None = None
    ) -> None:
        """`arena_bytes`: of a pool whose blocks lie in a GPU's memory. None: they lie here."""
        self.layout = layout
        self.num_blocks = num_blocks
        self.fd = fd
        weakref.finalize(self, os.close, fd)
        self._table_bytes = table = table_bytes(num_blocks)
        self._map = mmap.mmap(fd, _file_bytes(layout, num_blocks, arena_bytes))
        view = memoryview(self._map)
        self.generations = view[: num_blocks * 8].cast("Q")
        self.holds_blocks = arena_bytes is None
        probe_end = _probe_end(layout, num_blocks, arena_bytes)
        end = probe_end - probe_bytes(num_blocks * layout.block_bytes)
        self.blocks = view[table : end if self.holds_blocks else table]
        self.arena = view[end if self.holds_blocks else table : end]
        self.probe = view[end:probe_end]
        """random bytes that belong to no block"""
        self.first_tokens = view[_up_to_page(probe_end) :].cast("Q")
        """u64 per block, as `first_token_word` has it"""

    @classmethod
    def create(
        cls, layout: KVLayout, num_blocks: int, arena_bytes: int | None = None
    ) -> "KVMemory":
        """A new pool, zero-filled up to its probe; pages take memory only once written. Its size
        is final, so that whoever maps it can rely on it."""
        fd = os.memfd_create("baton-kv", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, _file_bytes(layout, num_blocks, arena_bytes))
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
        memory = cls(layout, num_blocks, fd, arena_bytes)
        memory.probe[:] = os.urandom(len(memory.probe))
        return memory

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
        if not self.holds_blocks:
            return
        for block_id in block_ids:
            start = self._table_bytes + block_id * self.layout.block_bytes
            first = max(0, start - _FAULT_AROUND) // mmap.PAGESIZE * mmap.PAGESIZE
            end = min(start + self.layout.block_bytes + _FAULT_AROUND, len(self._map))
            with contextlib.suppress(OSError):
                self._map.madvise(mmap.MADV_DONTNEED, first, end - first)


def first_token_word(generation: int, token_id: int) -> int:
    """What says that this is token 1 of a prompt whose last block has this generation: the low 32
    bits of both. A block that was never written has generation 0, and 0 is no such word."""
    return (generation & 0xFFFFFFFF) << 32 | token_id


def pool_bytes(layout: KVLayout, num_blocks: int) -> int:
    """Of a file that holds blocks, up to the first tokens."""
    num_bytes = num_blocks * layout.block_bytes
    return table_bytes(num_blocks) + num_bytes + probe_bytes(num_bytes)


def table_bytes(num_blocks: int) -> int:
    """Where the blocks begin: after the generations, on a page of their own."""
    return _up_to_page(num_blocks * 8)


def _probe_end(layout: KVLayout, num_blocks: int, arena_bytes: int | None) -> int:
    num_bytes = pool_bytes(layout, num_blocks)
    if arena_bytes is None:
        return num_bytes
    return num_bytes - num_blocks * layout.block_bytes + arena_bytes


def _file_bytes(layout: KVLayout, num_blocks: int, arena_bytes: int | None) -> int:
    """First tokens begin on a page of their own, and end the file: a reader, who does not know how
    large an arena is, finds them from there."""
    return _up_to_page(_probe_end(layout, num_blocks, arena_bytes)) + num_blocks * 8


def _up_to_page(num_bytes: int) -> int:
    return -(-num_bytes // _PAGE) * _PAGE
