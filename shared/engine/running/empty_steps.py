"""Steps that nobody asked for. They write nowhere and read block 0 again and again."""

from collections.abc import Sequence

import numpy as np

from shared.engine.scheduling.batch import SKIP_SLOT, HostBatch, Section
from shared.kv.layout import num_blocks_for


def decode_step(num_rows: int) -> HostBatch:
    """`num_rows` sequences of one token."""
    return _step([1] * num_rows, num_rows, 1)


def prompt_step(num_tokens: int, num_logits_rows: int, longest: int, block_size: int) -> HostBatch:
    """Prompts of up to `longest` that are `num_tokens` in all, with `num_logits_rows` rows of
    logits, though not more than tokens."""
    whole, rest = divmod(num_tokens, longest)
    lengths = [longest] * whole + [rest] * bool(rest)
    return _step(
        lengths, min(num_logits_rows, num_tokens), num_blocks_for(max(lengths), block_size)
    )


def _step(lengths: Sequence[int], num_logits_rows: int, table_width: int) -> HostBatch:
    """Sequences of these lengths, all of it computed in this step."""
    num_tokens = sum(lengths)
    return HostBatch.of(
        {
            Section.INPUT_IDS: np.zeros(num_tokens),
            Section.POSITIONS: np.concatenate([np.arange(length) for length in lengths]),
            Section.SLOT_MAPPING: np.full(num_tokens, SKIP_SLOT),
            Section.CONTEXT_LENS: lengths,
            Section.QUERY_LENS: lengths,
            Section.LOGITS_ROWS: np.arange(num_logits_rows),
            Section.COPIES: (),
            Section.BLOCK_TABLES: np.zeros((len(lengths), table_width)),
        }
    )
