"""The size of a step: each position that a token attends to is counted once, under its kind."""

import hypothesis.strategies as st
import numpy as np
from hypothesis import given

from shared.engine.running.step_size import StepSize
from shared.engine.scheduling.batch import HostBatch, Section

scheduled = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 12)), min_size=1, max_size=8)
"""(start, tokens) of each sequence"""


def batch_of(items: list[tuple[int, int]]) -> HostBatch:
    ends = [start + num_tokens for start, num_tokens in items]
    num_tokens = sum(num for _, num in items)
    return HostBatch.of(
        {
            Section.INPUT_IDS: np.zeros(num_tokens),
            Section.POSITIONS: np.zeros(num_tokens),
            Section.SLOT_MAPPING: np.zeros(num_tokens),
            Section.CONTEXT_LENS: ends,
            Section.QUERY_LENS: [num for _, num in items],
            Section.LOGITS_ROWS: (),
            Section.COPIES: (),
            Section.BLOCK_TABLES: np.zeros((len(items), 1)),
        }
    )


@given(scheduled)
def test_each_attended_position_is_counted_under_its_kind(items: list[tuple[int, int]]) -> None:
    rows = [start + 1 for start, num in items if num == 1]
    chunks = [(start, num) for start, num in items if num > 1]
    pairs = sum(position + 1 for start, num in chunks for position in range(start, start + num))
    assert StepSize.of(batch_of(items)) == StepSize(
        len(rows), sum(rows), sum(num for _, num in chunks), pairs
    )


@given(st.integers(0, 40), st.integers(1, 12))
def test_one_chunk_is_the_step_of_it_alone(start: int, num_tokens: int) -> None:
    assert StepSize.of_chunk(start, num_tokens) == StepSize.of(batch_of([(start, num_tokens)]))


def test_the_longest_contexts_of_a_full_step_do_not_overflow() -> None:
    size = StepSize.of(batch_of([(2**20, 8192), (0, 1)]))
    assert size.num_chunk_pairs == 8192 * 2**20 + 8192 * 8193 // 2
