"""Steps that nobody asked for. They write nowhere; most read block 0 again and again."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shared.engine.scheduling.batch import SKIP_SLOT, HostBatch, Section
from shared.kv.layout import num_blocks_for


def decode_step(num_rows: int) -> HostBatch:
    """`num_rows` sequences of one token."""
    return _whole([1] * num_rows, num_rows, 1)


def prompt_step(num_tokens: int, num_logits_rows: int, longest: int, block_size: int) -> HostBatch:
    """Prompts of up to `longest` that are `num_tokens` in all, with `num_logits_rows` rows of
    logits, though not more than tokens."""
    whole, rest = divmod(num_tokens, longest)
    lengths = [longest] * whole + [rest] * bool(rest)
    return _whole(
        lengths, min(num_logits_rows, num_tokens), num_blocks_for(max(lengths), block_size)
    )


def _whole(lengths: Sequence[int], num_logits_rows: int, table_width: int) -> HostBatch:
    """Sequences of these lengths, all of it computed in this step."""
    tables = np.zeros((len(lengths), table_width))
    return empty_step(lengths, lengths, np.arange(num_logits_rows), tables)


def empty_step(
    lengths: Sequence[int],
    contexts: Sequence[int],
    logits_rows: NDArray[np.integer],
    tables: NDArray[np.integer | np.floating],
) -> HostBatch:
    """The last `lengths` tokens of sequences that are as long as `contexts` and have `tables`."""
    num_tokens = sum(lengths)
    positions = [
        np.arange(context - length, context)
        for length, context in zip(lengths, contexts, strict=True)
    ]
    return HostBatch.of(
        {
            Section.INPUT_IDS: np.zeros(num_tokens),
            Section.POSITIONS: np.concatenate(positions),
            Section.SLOT_MAPPING: np.full(num_tokens, SKIP_SLOT),
            Section.CONTEXT_LENS: contexts,
            Section.QUERY_LENS: lengths,
            Section.LOGITS_ROWS: logits_rows,
            Section.COPIES: (),
            Section.BLOCK_TABLES: tables,
        }
    )
