"""A rank's heads on their way between its pool and an arena of whole blocks, against slices."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from kernels.sharing.copy_rows import RowCopy, Rows
from shared.kv.layer_groups import GroupRange, layer_groups
from shared.kv.layout import DTYPE_BYTES, KVLayout
from shared.kv.share import KVShare
from shared.mover.head_rows import staged_rows

Bytes = NDArray[np.uint8]
LAYOUT = KVLayout("m", "bfloat16", 5, 2, 8, 3, 4)
FEW_HEADS = KVLayout("m", "float32", 4, 2, 2, 5, 1)
NUM_BLOCKS = 6
BLOCKS = (4, 0, 5)
OTHERS = (1, 2, 3)
OFFSET = 40
"""of the arena, at which the first block goes"""


def whole_blocks(layout: KVLayout) -> Bytes:
    """[block, layer, plane, head, byte]"""
    head = layout.block_size * layout.head_dim * DTYPE_BYTES[layout.dtype]
    shape = (NUM_BLOCKS, layout.num_layers, layout.planes, layout.num_kv_heads, head)
    return np.random.default_rng(3).integers(0, 256, shape, np.uint8)


def pool_of(share: KVShare, blocks: Bytes) -> Bytes:
    """[block, byte]"""
    return np.ascontiguousarray(blocks[:, :, :, share.heads]).reshape(len(blocks), -1)


def part_of(layout: KVLayout, blocks: Bytes, groups: GroupRange) -> Bytes:
    """[block, byte] of these layer groups, whole."""
    ends = (0, *layer_groups(layout).layer_ends)
    layers = slice(ends[groups.first], ends[groups.end])
    return blocks[list(BLOCKS), layers].reshape(len(BLOCKS), -1)


def copy_rows(copies: Sequence[RowCopy], *memories: Bytes) -> None:
    """As a device does it, between these only."""
    for destination, source, width, height in copies:
        target = rows_in(destination, width, height, memories)
        target[:] = rows_in(source, width, height, memories)


def rows_in(rows: Rows, width: int, height: int, memories: tuple[Bytes, ...]) -> Bytes:
    """[height, width], a view."""
    assert rows.pitch >= width
    num_bytes = (height - 1) * rows.pitch + width
    for memory in memories:
        start = rows.address - memory.ctypes.data
        if 0 <= start <= memory.size - num_bytes:
            flat = memory.reshape(-1)[start:]
            return np.lib.stride_tricks.as_strided(flat, (height, width), (rows.pitch, 1))
    raise AssertionError(f"{rows} of {height} x {width} bytes are in no memory")


def all_ranges(layout: KVLayout) -> list[GroupRange]:
    ends = range(len(layer_groups(layout)) + 1)
    return [GroupRange(first, end - first) for first, end in itertools.combinations(ends, 2)]


CASES = [(LAYOUT, 1), (LAYOUT, 2), (LAYOUT, 4), (LAYOUT, 8), (FEW_HEADS, 2), (FEW_HEADS, 8)]


@pytest.mark.parametrize(("layout", "size"), CASES)
def test_ranks_stage_whole_blocks_between_them(layout: KVLayout, size: int) -> None:
    blocks = whole_blocks(layout)
    assert len(all_ranges(layout)) == 3
    for groups in all_ranges(layout):
        wanted = part_of(layout, blocks, groups)
        arena = np.full(OFFSET + wanted.size + OFFSET, 7, np.uint8)
        for rank in range(size):
            share = KVShare(layout, rank, size)
            pool = pool_of(share, blocks)
            to = arena.ctypes.data + OFFSET
            copies = staged_rows(share, BLOCKS, groups, pool.ctypes.data, to)
            assert len(copies) == len(BLOCKS)
            before = arena.copy()
            copy_rows(copies, pool, arena)
            changed = np.flatnonzero(arena != before)
            assert changed.size <= pool.size // NUM_BLOCKS * len(BLOCKS)
        staged = arena[OFFSET:-OFFSET].reshape(wanted.shape)
        assert np.array_equal(staged, wanted)
        assert (arena[:OFFSET] == 7).all()
        assert (arena[-OFFSET:] == 7).all()


@pytest.mark.parametrize(("layout", "size"), CASES)
def test_each_rank_takes_its_heads_out(layout: KVLayout, size: int) -> None:
    blocks, nothing = whole_blocks(layout), np.zeros_like(whole_blocks(layout))
    for groups, rank in itertools.product(all_ranges(layout), range(size)):
        share = KVShare(layout, rank, size)
        arena = part_of(layout, blocks, groups)
        pool, before = pool_of(share, nothing), arena.copy()
        copies = staged_rows(share, OTHERS, groups, pool.ctypes.data, arena.ctypes.data)
        copy_rows([copy.back for copy in copies], pool, arena)
        wanted, span = pool_of(share, nothing), share.groups.span(groups)
        wanted[list(OTHERS), span] = pool_of(share, blocks)[list(BLOCKS), span]
        assert np.array_equal(pool, wanted)
        assert np.array_equal(arena, before)
