"""A 64-bit digest of a layer group's bytes in one KV block, the same on every machine and device.

    digest = sum over words w[i] of mix(w[i] ^ key[i])   mod 2**64
    key[i] = mix((i + 1) * GOLDEN)

Words are 64 bits, little-endian, in pool order, the last one padded with zeros. `mix` is the
finalizer of SplitMix64 (Steele, Lea, Flood 2014; Stafford's variant 13): a bijection in which
every input bit flips about half of the output bits. Damage confined to one word is therefore
always seen; damage to several words, or words that changed places, escapes with probability
2**-64. Sums can be formed in any order, so a GPU kernel can compute the same value.

A guard against damage, not against forgery.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shared.kv.columns import Words
from shared.kv.layer_groups import GroupRange
from shared.kv.memory import KVMemory
from shared.kv.share import KVShare

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FACTOR_1 = np.uint64(0xBF58476D1CE4E5B9)
_FACTOR_2 = np.uint64(0x94D049BB133111EB)
_TILE_WORDS = 32768
"""256 KiB: a tile and its scratch stay in the second-level cache through all ten passes"""


def digest_of(flat: NDArray[np.uint8]) -> int:
    """Of bytes [bytes] that lie together, as if they were a layer group."""
    words = np.pad(flat, (0, -len(flat) % 8)).view("<u8")
    scratch, total = _new_scratch(), 0
    for start in range(0, len(words), _TILE_WORDS):
        tile = words[start : start + _TILE_WORDS]
        mixed, shifted = scratch.of_shape(tile.shape)
        np.bitwise_xor(tile, _position_keys(len(tile), start), out=mixed)
        total += int(_mix(mixed, shifted).sum(dtype=np.uint64))
    return total % 2**64


class BlockDigests:
    """Digests of blocks of one pool. Those of the shares of all ranks add up to those of whole
    blocks, modulo 2**64. Safe to use from several threads."""

    def __init__(self, rows: NDArray[np.uint8], share: KVShare) -> None:
        """`rows`: [num_blocks, bytes of the share]."""
        self._rows = rows
        self._groups = share.groups
        self._keys = _share_keys(share)

    @classmethod
    def of_pool(cls, memory: KVMemory) -> "BlockDigests":
        """Of whole blocks in host memory."""
        return cls(memory.rows(), KVShare(memory.layout))

    def of(self, block_ids: Sequence[int], groups: GroupRange) -> Words:
        """[blocks, groups], in the order given."""
        scratch = _new_scratch()
        digests = np.empty((len(block_ids), groups.num), np.uint64)
        for column in range(groups.num):
            span = self._groups.span(GroupRange(groups.first + column, 1))
            num_words = -(-(span.stop - span.start) // 8)
            rows_per_tile = max(1, _TILE_WORDS // num_words)
            for start in range(0, len(block_ids), rows_per_tile):
                words = self._words(block_ids[start : start + rows_per_tile], span)
                digests[start : start + len(words), column] = self._sum(words, scratch)
        return digests

    def _words(self, block_ids: Sequence[int], span: slice) -> Words:
        """[blocks, words of the span]; a view of the pool where the blocks are neighbours."""
        if all(right == left + 1 for left, right in pairwise(block_ids)):
            rows = self._rows[block_ids[0] : block_ids[-1] + 1, span]
        else:
            rows = self._rows[np.asarray(block_ids), span]
        if rows.shape[1] % 8:
            rows = np.pad(rows, ((0, 0), (0, -rows.shape[1] % 8)))
        return rows.view("<u8")

    def _sum(self, words: Words, scratch: "_Scratch") -> Words:
        """[rows]: the digest of each row."""
        total = np.zeros(len(words), dtype=np.uint64)
        for start in range(0, words.shape[1], _TILE_WORDS):
            tile = words[:, start : start + _TILE_WORDS]
            mixed, shifted = scratch.of_shape(tile.shape)
            keys = self._keys[start : start + tile.shape[1]]
            np.bitwise_xor(tile, keys, out=mixed)
            _mix(mixed, shifted)
            total += mixed.sum(axis=1)
        return total


class _Scratch(NamedTuple):
    """Two tiles, allocated once: fresh ones would cost page faults on every use."""

    mixed: Words
    shifted: Words

    def of_shape(self, shape: tuple[int, ...]) -> tuple[Words, Words]:
        size = math.prod(shape)
        return self.mixed[:size].reshape(shape), self.shifted[:size].reshape(shape)


def _new_scratch() -> _Scratch:
    return _Scratch(np.empty(_TILE_WORDS, np.uint64), np.empty(_TILE_WORDS, np.uint64))


def _mix(x: Words, shifted: Words) -> Words:
    """SplitMix64's finalizer, in place on `x`; wraps modulo 2**64."""
    for shift, factor in ((30, _FACTOR_1), (27, _FACTOR_2), (31, None)):
        np.right_shift(x, np.uint64(shift), out=shifted)
        np.bitwise_xor(x, shifted, out=x)
        if factor is not None:
            np.multiply(x, factor, out=x)
    return x


def _share_keys(share: KVShare) -> Words:
    """Of a share's words, by their places in whole blocks. ValueError if a head is no whole number
    of words."""
    keys = _position_keys(-(-share.whole.block_bytes // 8))
    if share.is_whole:
        return keys
    if share.head_bytes % 8:
        raise ValueError(f"{share.head_bytes} bytes of a head are no whole words")
    heads = keys.reshape(-1, share.whole.num_kv_heads, share.head_bytes // 8)
    return heads[:, share.heads].reshape(-1)


def _position_keys(num_words: int, first: int = 0) -> Words:
    """Of the words from `first` on."""
    steps = np.arange(first + 1, first + num_words + 1, dtype=np.uint64) * _GOLDEN
    return _mix(steps, np.empty_like(steps))
