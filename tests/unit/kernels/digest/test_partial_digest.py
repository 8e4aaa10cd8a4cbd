"""Digests of what ranks hold of a block: they add up to the whole one's."""

import itertools
from functools import partial

import numpy as np
import pytest
import torch
from triton.runtime.interpreter import InterpretedFunction

from kernels.digest import reference
from kernels.digest.block_digest import (
    NUM_PIECES,
    TILE_WORDS,
    WHOLE_ROW,
    WORD_BYTES,
    Row,
    block_digest_kernel,
    block_digests,
)
from shared.kv.columns import Words
from shared.kv.digest import BlockDigests
from shared.kv.layer_groups import GroupRange, layer_groups
from shared.kv.layout import KVLayout
from shared.kv.memory import KVMemory
from shared.kv.share import KVShare
from tests.support.kv_shares import BLOCKS, NUM_BLOCKS, assert_adds_up, filled, heads_of

pytestmark = pytest.mark.filterwarnings(  # the interpreter makes a loop's bound of an array of one
    "ignore:Conversion of an array with ndim:DeprecationWarning"
)
DEVICE = "cpu" if isinstance(block_digest_kernel, InterpretedFunction) else "cuda"
LAYOUTS = (
    KVLayout("m", "float32", 5, 2, 8, 3, 2),
    KVLayout("m", "float16", 4, 2, 8, 20, 1),
    KVLayout("m", "bfloat16", 6, 2, 8, 7, 16),
    KVLayout("replicated", "float16", 3, 2, 2, 5, 4),
    KVLayout("of one head", "float32", 1, 2, 1, 6, 3),
    KVLayout("three planes", "float32", 4, 3, 8, 1, 2),
)
LONG = KVLayout("longer than tiles", "float32", 6, 2, 4, 5, 130)


def digests_of(function: object, memory: KVMemory, groups: GroupRange, share: KVShare) -> Words:
    """[BLOCKS, groups]"""
    device = DEVICE if function is block_digests else "cpu"
    bounds = torch.tensor(share.groups.bounds(WORD_BYTES), device=device)
    ids = torch.tensor(BLOCKS, dtype=torch.int64, device=device)
    shape = len(BLOCKS), groups.num, NUM_PIECES
    found = torch.zeros(shape, dtype=torch.int64, device=device)
    pool, row = torch.from_numpy(heads_of(memory, share)).flatten(1), Row.of_bytes(*share.row)
    function(pool.to(device), bounds, groups.first, ids, found, row)  # type: ignore[operator]
    words: Words = found.cpu().numpy().view(np.uint64).sum(2)
    return words


@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: f"{layout.dtype}-{layout.head_dim}")
@pytest.mark.parametrize("function", [reference.block_digests, block_digests])
def test_partial_digests_add_up(function: object, layout: KVLayout, size: int) -> None:
    memory, groups = filled(layout), layer_groups(layout).all
    digests = partial(digests_of, function, memory, groups)
    assert_adds_up(digests, layout, size, BlockDigests.of_pool(memory).of(BLOCKS, groups))


@pytest.mark.parametrize("function", [reference.block_digests, block_digests])
def test_those_of_each_layer_group_do_too(function: object) -> None:
    """Where a part has several tiles, whose ends lie within rows."""
    memory, of_layout = filled(LONG), layer_groups(LONG)
    row = Row.of_bytes(*KVShare(LONG, 1, 2).row)
    assert TILE_WORDS % row.own
    assert KVShare(LONG, 1, 2).groups.bounds(WORD_BYTES)[1] > 2 * TILE_WORDS
    wanted = BlockDigests.of_pool(memory).of(BLOCKS, of_layout.all)
    for first, end in itertools.combinations(range(len(of_layout) + 1), 2):
        groups = GroupRange(first, end - first)
        digests = partial(digests_of, function, memory, groups)
        assert_adds_up(digests, LONG, 2, wanted[:, first:end])


def test_each_rank_has_a_digest_of_its_own() -> None:
    """Equal heads at other places are other words."""
    memory = KVMemory.create(LAYOUTS[0], NUM_BLOCKS)
    groups = layer_groups(LAYOUTS[0]).all
    digests = [
        tuple(digests_of(block_digests, memory, groups, KVShare(LAYOUTS[0], rank, 4))[0])
        for rank in range(4)
    ]
    assert len(set(digests)) == 4


def test_a_row_of_words() -> None:
    assert Row.of_bytes(8, 32, 24) == Row(1, 4, 3)
    assert Row.of_bytes(12, 12, 0) == WHOLE_ROW
    for sizes in ((12, 24, 0), (16, 36, 0), (16, 32, 4)):
        with pytest.raises(ValueError, match="no words of 8"):
            Row.of_bytes(*sizes)


def test_a_row_that_does_not_fit_is_refused() -> None:
    pool = torch.zeros(2, 16, dtype=torch.uint8, device=DEVICE)
    bounds, ids, found = (torch.zeros(*shape, dtype=torch.int64, device=DEVICE) for shape in SHAPES)
    for row in (Row(0, 1, 0), Row(2, 4, 3), Row(2, 4, -1), Row(3, 2, 0)):
        with pytest.raises(ValueError, match="words from"):
            block_digests(pool, bounds, 0, ids, found, row)


SHAPES = ((2,), (1,), (1, 1, NUM_PIECES))
"""of bounds, ids and digests"""
