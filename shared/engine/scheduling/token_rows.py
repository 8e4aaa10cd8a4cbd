"""A small step with chunks of prompts, as one in which each sequence has a single token. Pure.

A token of a chunk attends to the tokens before it and to itself. So it is the token of a sequence
of its own that ends there, in the same blocks: K and V of a layer are stored for all rows before
any of them reads. A device that launches steps of single tokens as a whole then need not be given
this one kernel by kernel, which takes the host of an H200 10 ms, and 16 ms if it has rested, for
work of 5.

What it costs: a chunk reads its context once, and each row by itself.
"""

import numpy as np

from shared.engine.scheduling.batch import HostBatch, Section

MAX_CONTEXT_TOKENS = 48 * 1024
"""that all rows of chunks read together; 1.5 ms of an H200 with an 8B model"""
MAX_TABLE_ENTRIES = 128 * 1024
"""of all rows: what the host copies"""


def as_token_rows(batch: HostBatch, max_rows: int) -> HostBatch:
    """The same step with a sequence for each token, if it has at most `max_rows` and that costs
    little; else `batch`. Its rows of logits are the same."""
    shape, query_lens = batch.shape, batch.query_lens
    if not shape.has_chunks or shape.num_tokens > max_rows:
        return batch
    if shape.num_copies or batch.scores is not None:
        return batch
    if shape.num_tokens * shape.table_width > MAX_TABLE_ENTRIES:
        return batch
    context_lens = batch.positions + 1
    if int(context_lens[np.repeat(query_lens > 1, query_lens)].sum()) > MAX_CONTEXT_TOKENS:
        return batch
    return HostBatch.of(
        {
            Section.INPUT_IDS: batch.input_ids,
            Section.POSITIONS: batch.positions,
            Section.SLOT_MAPPING: batch.slot_mapping,
            Section.CONTEXT_LENS: context_lens,
            Section.QUERY_LENS: np.ones_like(context_lens),
            Section.LOGITS_ROWS: batch.logits_rows,
            Section.COPIES: (),
            Section.BLOCK_TABLES: np.repeat(batch.block_tables, query_lens, axis=0),
        }
    )
