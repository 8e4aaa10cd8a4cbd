"""Columns of block ids and of 64-bit words as bytes: packed little-endian u32 and u64."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.uint32]
Words = NDArray[np.uint64]


def pack_ids(block_ids: Ids | Sequence[int]) -> bytes:
    return np.asarray(block_ids, "<u4").tobytes()


def unpack_ids(packed: bytes) -> Ids:
    """Read-only. ValueError unless it is a column of ids."""
    return np.frombuffer(packed, "<u4")


def pack_words(words: Words | Sequence[int]) -> bytes:
    """Row after row."""
    return np.asarray(words, "<u8").tobytes()


def unpack_words(packed: bytes, num_rows: int) -> Words:
    """[rows, words a row], read-only. ValueError unless every row has as many."""
    words = np.frombuffer(packed, "<u8")
    return words.reshape(num_rows, -1 if num_rows else 0)
