"""Shares of blocks: the ranks hold all heads between them, and their digests add up."""

from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from shared.engine.layers.shard import Shard
from shared.kv.digest import BlockDigests
from shared.kv.layer_groups import GroupRange
from shared.kv.layout import KVLayout
from shared.kv.memory import KVMemory
from shared.kv.share import KVShare
from shared.model.checkpoint import random_checkpoint
from tests.support.models.tiny_model import TINY

LAYOUT = KVLayout("m", "float16", 5, 2, 8, 12, 4)
RATIOS = [(heads, size) for heads in (1, 2, 4, 8) for size in (1, 2, 4, 8)]


def shares_of(num_heads: int, size: int) -> list[KVShare]:
    whole = replace(LAYOUT, num_kv_heads=num_heads)
    return [KVShare(whole, rank, size) for rank in range(size)]


@pytest.mark.parametrize(("num_heads", "size"), RATIOS)
def test_each_copy_has_every_head_once(num_heads: int, size: int) -> None:
    shares = shares_of(num_heads, size)
    copies = {share.copy for share in shares}
    assert copies == set(range(max(1, size // num_heads)))
    for copy in copies:
        held = [list(range(num_heads))[share.heads] for share in shares if share.copy == copy]
        assert sorted(chain(*held)) == list(range(num_heads))


@pytest.mark.parametrize(("num_heads", "size"), RATIOS)
def test_a_rank_holds_the_heads_that_it_computes(num_heads: int, size: int) -> None:
    raw = {**TINY, "num_attention_heads": 8, "num_key_value_heads": num_heads}
    model = random_checkpoint(Path(), "tiny", raw).config
    for share in shares_of(num_heads, size):
        keys = Shard(model, share.rank, size).keys
        width = model.head_dim
        assert (keys.start, keys.stop) == (share.heads.start * width, share.heads.stop * width)


@pytest.mark.parametrize(("num_heads", "size"), [(3, 2), (2, 3), (4, 6)])
def test_heads_that_cannot_be_split_evenly_are_no_share(num_heads: int, size: int) -> None:
    with pytest.raises(ValueError, match=f"{num_heads} KV heads for rank 0 of {size}"):
        shares_of(num_heads, size)


def test_a_rank_that_does_not_exist_has_no_share() -> None:
    with pytest.raises(ValueError, match="rank 2 of 2"):
        KVShare(LAYOUT, 2, 2)


@pytest.mark.parametrize(("num_heads", "size"), RATIOS)
def test_digests_of_shares_add_up_to_those_of_whole_blocks(num_heads: int, size: int) -> None:
    shares = shares_of(num_heads, size)
    memory = KVMemory.create(shares[0].whole, 6)
    rows = memory.rows()
    rows[:] = np.random.default_rng(3).integers(0, 256, rows.shape, np.uint8)
    heads = rows.reshape(6, -1, num_heads, shares[0].head_bytes)
    groups = GroupRange(1, len(shares[0].groups) - 1)
    wanted = BlockDigests.of_pool(memory).of((4, 1), groups)
    for copy in {share.copy for share in shares}:
        found = [
            BlockDigests(heads[:, :, share.heads].reshape(6, -1), share).of((4, 1), groups)
            for share in shares
            if share.copy == copy
        ]
        assert np.array_equal(np.sum(found, axis=0, dtype=np.uint64), wanted)


def test_a_head_that_is_no_whole_number_of_words_is_refused() -> None:
    share = KVShare(replace(LAYOUT, head_dim=3, block_size=1), 0, 2)
    with pytest.raises(ValueError, match="6 bytes of a head are no whole words"):
        BlockDigests(np.zeros((1, share.layout.block_bytes), np.uint8), share)
