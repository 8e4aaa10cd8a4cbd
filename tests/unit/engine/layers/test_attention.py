"""Tiled paged attention against the plain reference, whatever the block size and the mix."""

import random

import pytest
import torch

from kernels.attention import reference
from shared.engine.layers.attention import MAX_ROWS, TILE, TiledAttention
from shared.engine.layers.batch_tensors import BatchTensors
from shared.engine.running.model_runner import to_tensors
from shared.kv.layout import num_blocks_for
from tests.support.models.tiny_model import Rows, hand_made_batch, starts_of

NUM_BLOCKS = 60
MIX = ((1, 1), (70, 1), (64, 1), (65, 2), (130, 66), (200, 130), (40, 40), (128, 1))
"""(context length, query rows) of each sequence, this step's tokens included"""


def _case(block_size: int, heads: tuple[int, int, int]) -> tuple[torch.Tensor, ...]:
    num_heads, num_kv_heads, head_dim = heads
    generator = torch.Generator().manual_seed(block_size)
    num_blocks = sum(num_blocks_for(length, block_size) for length, _ in MIX) + 3
    pool = torch.randn(num_blocks, 2, 2, num_kv_heads, block_size, head_dim, generator=generator)
    num_rows = sum(rows for _, rows in MIX)
    return torch.randn(num_rows, num_heads, head_dim, generator=generator), pool


def _batch(block_size: int, num_blocks: int) -> BatchTensors:
    free = random.Random(block_size).sample(range(num_blocks), num_blocks)  # noqa: S311
    steps = [
        Rows(
            [0] * length,
            length - rows,
            length,
            [free.pop() for _ in range(num_blocks_for(length, block_size))],
        )
        for length, rows in MIX
    ]
    return to_tensors(hand_made_batch(steps, block_size, all_rows=False))


@pytest.mark.parametrize("block_size", [1, 16, 24, 64, 128])
@pytest.mark.parametrize("heads", [(4, 2, 16), (3, 1, 64), (2, 2, 128)])
def test_equals_the_reference(block_size: int, heads: tuple[int, int, int]) -> None:
    queries, pool = _case(block_size, heads)
    batch = _batch(block_size, pool.shape[0])
    ours = TiledAttention()(queries, pool, 1, batch, 0.3)
    theirs = reference.paged_prefill_attention(
        queries, pool, 1, batch.block_tables, starts_of(batch.query_lens), batch.context_lens, 0.3
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    wrong_layer = TiledAttention()(queries, pool, 0, batch, 0.3)
    assert not torch.allclose(wrong_layer, theirs, rtol=1e-2, atol=1e-2)


def test_slots_past_the_end_and_other_blocks_do_not_matter() -> None:
    queries, pool = _case(16, (4, 2, 16))
    batch = _batch(16, pool.shape[0])
    clean = TiledAttention()(queries, pool, 1, batch, 0.3)
    used = torch.zeros(pool.shape[0], 16, dtype=torch.bool)
    for row, length in enumerate(batch.context_lens_host):
        for position in range(length):
            used[batch.block_tables[row, position // 16], position % 16] = True
    dirty = pool.clone()
    dirty.permute(0, 4, 1, 2, 3, 5)[~used] = torch.nan
    assert torch.equal(TiledAttention()(queries, dirty, 1, batch, 0.3), clean)
    last = batch.block_tables[0, 0]
    dirty[last, 1, 1, 0, 0, 0] += 1
    assert not torch.equal(TiledAttention()(queries, dirty, 1, batch, 0.3), clean)


def test_rows_of_no_sequence_give_zeros() -> None:
    queries, pool = _case(16, (4, 2, 16))
    more = torch.cat((queries, torch.ones(3, 4, 16)))
    output = TiledAttention()(more, pool, 0, _batch(16, pool.shape[0]), 0.3)
    assert not output[-3:].any()
    assert output[:-3].any(dim=(1, 2)).all()


def test_decode_reference_is_prefill_of_one_row() -> None:
    _, pool = _case(16, (4, 2, 16))
    batch = _batch(16, pool.shape[0])
    queries = torch.randn(len(MIX), 4, 16, generator=torch.Generator().manual_seed(0))
    output = reference.paged_decode_attention(
        queries, pool, 0, batch.block_tables, batch.context_lens, 0.25
    )
    # the first sequence has one position: its weight is 1, the answer is its value
    values = pool[batch.block_tables[0, 0], 0, 1, :, 0]
    torch.testing.assert_close(output[0], values.repeat_interleave(2, dim=0))


def test_the_mix_crosses_every_border() -> None:
    assert any(rows > MAX_ROWS for _, rows in MIX)
    assert {length % TILE for length, _ in MIX} >= {0, 1}
