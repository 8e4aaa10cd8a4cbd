"""Steps that nobody asked for. They write nowhere and read block 0 again and again."""

from collections.abc import Sequence

import numpy as np

from shared.engine.batch import BatchShape, HostBatch
from shared.kv_layout import num_blocks_for

SKIP_SLOT = -1


def largest_step(num_tokens: int, num_logits_rows: int, block_size: int) -> HostBatch:
    """One prompt of `num_tokens`, with as many rows of logits."""
    width = num_blocks_for(num_tokens, block_size)
    rows = min(num_logits_rows, num_tokens)
    shape = BatchShape(num_tokens, 1, rows, 0, width)
    lengths = ([num_tokens], [num_tokens])
    return _packed(shape, range(num_tokens), *lengths)


def decode_step(num_rows: int) -> HostBatch:
    """So many sequences of one token."""
    shape = BatchShape(num_rows, num_rows, num_rows, 0, 1)
    ones = [1] * num_rows
    return _packed(shape, [0] * num_rows, ones, ones)


def _packed(
    shape: BatchShape,
    positions: Sequence[int],
    context_lens: Sequence[int],
    query_lens: Sequence[int],
) -> HostBatch:
    parts = (
        np.zeros(shape.num_tokens),
        positions,
        np.full(shape.num_tokens, SKIP_SLOT),
        context_lens,
        query_lens,
        np.arange(shape.num_logits_rows),
        np.zeros(shape.num_sequences * shape.table_width),
    )
    return HostBatch(shape, np.concatenate(parts).astype(np.int32))
