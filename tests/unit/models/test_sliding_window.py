"""A window hides exactly the keys left of it, and leaving out hidden tiles changes no bit."""

import random

import pytest
import torch

from kernels.attention import reference
from shared.engine.layers.attention import TILE, TiledAttention, tile_span
from shared.engine.layers.batch_tensors import BatchTensors
from shared.engine.running.model_runner import to_tensors
from shared.kv.layout import num_blocks_for
from tests.support.models.tiny_model import Rows, hand_made_batch, starts_of

MIX = ((1, 1), (70, 1), (64, 1), (65, 2), (330, 66), (300, 130), (40, 40), (128, 1), (400, 1))
"""(context length, query rows) of each sequence, this step's tokens included"""
WINDOWS = (1, 5, 63, 64, 65, 128, 200, 1000)


def _case(block_size: int) -> tuple[torch.Tensor, torch.Tensor, BatchTensors]:
    generator = torch.Generator().manual_seed(block_size)
    num_blocks = sum(num_blocks_for(length, block_size) for length, _ in MIX) + 3
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
    pool = torch.randn(num_blocks, 2, 2, 2, block_size, 16, generator=generator)
    queries = torch.randn(sum(rows for _, rows in MIX), 4, 16, generator=generator)
    return queries, pool, to_tensors(hand_made_batch(steps, block_size, all_rows=False))


@pytest.mark.parametrize("block_size", [16, 24, 128])
def test_equals_the_reference_and_not_its_neighbours(block_size: int) -> None:
    queries, pool, batch = _case(block_size)
    ours = TiledAttention()
    for window in WINDOWS:
        found = ours(queries, pool, 1, batch, 0.3, window)
        for other in (window - 1, window, window + 1):
            theirs = reference.paged_prefill_attention(
                queries,
                pool,
                1,
                batch.block_tables,
                starts_of(batch.query_lens),
                batch.context_lens,
                0.3,
                other,
            )
            longest = max(length for length, _ in MIX)
            same = other == window or (other > 0 and min(other, window) >= longest)
            assert torch.allclose(found, theirs, rtol=1e-5, atol=1e-5) == same, (window, other)
    everything = ours(queries, pool, 1, batch, 0.3)
    assert torch.equal(ours(queries, pool, 1, batch, 0.3, 1000), everything)


@pytest.mark.parametrize("window", WINDOWS)
def test_a_tile_left_out_adds_the_same_bits_as_one_that_is_hidden(window: int) -> None:
    """Alone a row's tiles begin at its window; in a chunk they begin at the first row's."""
    length, num_rows = 330, 140
    generator = torch.Generator().manual_seed(window)
    pool = torch.randn(21, 1, 2, 2, 16, 16, generator=generator)
    queries = torch.randn(num_rows, 4, 16, generator=generator)
    table = range(21)
    start = length - num_rows
    chunk = [Rows([0] * length, start, length, table)]
    alone = [Rows([0] * length, at, at + 1, table) for at in range(start, length)]
    together, one_by_one = (
        TiledAttention()(
            queries, pool, 0, to_tensors(hand_made_batch(steps, 16, all_rows=False)), 0.3, window
        )
        for steps in (chunk, alone)
    )
    assert torch.equal(together.view(torch.int32), one_by_one.view(torch.int32))
    left_out = tile_span(length - 1, window)[0] - tile_span(start, window)[0]
    assert left_out >= 2 or window > length


def test_a_span_holds_every_visible_key_and_no_tile_without_one() -> None:
    for position in (0, 1, 63, 64, 65, 200):
        for window in (0, *WINDOWS):
            first = max(0, position - (window or position + 1) + 1)
            tiles = {key // TILE for key in range(first, position + 1)}
            assert set(tile_span(position, window)) == tiles
