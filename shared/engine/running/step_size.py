"""What one step computes, as far as its time depends on it."""

from typing import NamedTuple

import numpy as np

from shared.engine.scheduling.batch import HostBatch


class StepSize(NamedTuple):
    """Counts of one step. A sequence that computes one token is a row, whatever its phase, since
    that is how the kernels treat it; one that computes more is a chunk."""

    num_rows: int
    num_context_tokens: int
    """positions that the rows attend to, their own included: what a decode kernel reads"""
    num_chunk_tokens: int
    """tokens of all chunks: what the matrix products of a prompt grow with"""
    num_chunk_pairs: int
    """pairs of a chunk token and a position it attends to, its own included: what the attention
    of a prompt grows with. It is the chunks' tokens times the mean context of each"""

    @classmethod
    def of(cls, batch: HostBatch) -> "StepSize":
        """The size of a packed step."""
        contexts = batch.context_lens
        if batch.shape.num_tokens == batch.shape.num_sequences:
            return cls(len(contexts), int(contexts.sum()), 0, 0)
        queries = batch.query_lens.astype(np.int64)
        is_row = queries == 1
        num_rows = int(np.count_nonzero(is_row))
        pairs = queries * contexts - queries * (queries - 1) // 2
        num_row_pairs = int(pairs[is_row].sum())
        return cls(
            num_rows,
            num_row_pairs,
            batch.shape.num_tokens - num_rows,
            int(pairs.sum()) - num_row_pairs,
        )

    @classmethod
    def of_chunk(cls, start: int, num_tokens: int) -> "StepSize":
        """Tokens [start, start + num_tokens) of one prompt, and nothing else."""
        pairs = num_tokens * start + num_tokens * (num_tokens + 1) // 2
        return cls(1, pairs, 0, 0) if num_tokens == 1 else cls(0, 0, num_tokens, pairs)
