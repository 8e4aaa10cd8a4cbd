"""The pool of another worker of this host, mapped read-only from a descriptor it passed.

A descriptor is taken only if its file cannot shrink: a page that is gone would kill the reader.
"""

import fcntl
import mmap
import os

import numpy as np
from numpy.typing import NDArray

from shared.kv.columns import Words
from shared.kv.layout import KVLayout
from shared.kv.memory import first_token_word, pool_bytes, table_bytes


class PeerTable:
    """The generations of another worker's blocks, for a check after the last copy (R13)."""

    def __init__(self, num_blocks: int, fd: int) -> None:
        """Takes `fd` over. ValueError if it is no pool of `num_blocks` blocks, OSError if it
        cannot be mapped."""
        self._map = _mapped(fd, table_bytes(num_blocks))
        words: Words = np.frombuffer(self._map, np.uint64)
        self.generations = words[:num_blocks]
        """[num_blocks]; nobody keeps a slice of it"""

    def close(self) -> None:
        del self.generations
        self._map.close()


class PeerFirstTokens:
    """The words in which another worker shows token 1 of its prompts."""

    def __init__(self, num_blocks: int, fd: int) -> None:
        """Takes `fd` over. ValueError if it is no pool of `num_blocks` blocks, OSError if it
        cannot be mapped."""
        self.num_blocks = num_blocks
        start = os.fstat(fd).st_size - num_blocks * 8
        before = start % mmap.ALLOCATIONGRANULARITY
        self._map = _mapped(fd, before + num_blocks * 8, start - before)
        self._view = memoryview(self._map)
        self._words = self._view[before:].cast("Q")

    def of(self, block: int, generation: int) -> int | None:
        """Token 1 of the prompt whose last block has this generation, once it is known."""
        word = self._words[block]
        token_id = word & 0xFFFFFFFF
        return token_id if word == first_token_word(generation, token_id) else None

    def close(self) -> None:
        self._words.release()
        self._view.release()
        self._map.close()


class PeerBlocks:
    """The bytes of another worker's blocks, and of its probe."""

    def __init__(self, layout: KVLayout, num_blocks: int, fd: int) -> None:
        """Takes `fd` over. ValueError if it is no pool of `num_blocks` blocks, OSError if it
        cannot be mapped."""
        self.num_blocks = num_blocks
        table = table_bytes(num_blocks)
        self._map = _mapped(fd, pool_bytes(layout, num_blocks))
        flat: NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)
        end = table + num_blocks * layout.block_bytes
        self.rows: NDArray[np.uint8] = flat[table:end].reshape(num_blocks, layout.block_bytes)
        """[num_blocks, block bytes]; nobody keeps a slice of it"""
        self.probe: NDArray[np.uint8] = flat[end : pool_bytes(layout, num_blocks)]
        """[probe bytes]; nor of this"""

    def forget_pages(self) -> None:
        """What was read no longer counts as memory of this process."""
        self._map.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        del self.rows, self.probe
        self._map.close()


def _mapped(fd: int, num_bytes: int, start: int = 0) -> mmap.mmap:
    """Bytes of the file from `start` on, a multiple of what mappings begin at."""
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        if not seals & fcntl.F_SEAL_SHRINK:
            raise ValueError("the pool could shrink while it is read")
        if start < 0 or os.fstat(fd).st_size < start + num_bytes:
            raise ValueError("the pool is smaller than its owner says")
        return mmap.mmap(fd, num_bytes, mmap.MAP_SHARED, mmap.PROT_READ, offset=start)
    finally:
        os.close(fd)
