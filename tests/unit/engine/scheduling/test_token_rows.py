"""A step with a sequence for each token gives the logits of the step that it was made of, and no
step is made so where that is impossible, or costs much."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.engine.running.empty_steps import empty_step
from shared.engine.sampling.score_plan import ScorePlan
from shared.engine.scheduling.batch import HostBatch, Section
from shared.engine.scheduling.token_rows import (
    MAX_CONTEXT_TOKENS,
    MAX_TABLE_ENTRIES,
    as_token_rows,
)
from tests.support.models.tiny_model import (
    TINY,
    Rows,
    TinyRunner,
    hand_made_batch,
    write_checkpoint,
)

BLOCK_SIZE = 8
TABLES = ([4, 1, 9, 6], [7, 2, 8, 5], [0, 3, 10, 11])
PROMPTS = [[(a * step * step + step) % 131 for step in range(30)] for a in (3, 5, 7)]


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], TinyRunner]:
    checkpoint = write_checkpoint(tmp_path_factory.mktemp("model"), TINY)
    return lambda: TinyRunner(checkpoint, num_blocks=12, block_size=BLOCK_SIZE)


spans = st.lists(
    st.tuples(st.integers(0, 20), st.integers(1, 9)), min_size=1, max_size=len(PROMPTS)
)


@settings(max_examples=40)
@given(spans=spans, all_rows=st.booleans())
def test_the_logits_are_the_same_bit_for_bit(
    runner: Callable[[], TinyRunner], spans: list[tuple[int, int]], all_rows: bool
) -> None:
    answers = []
    for max_rows in (0, 64):
        ours = runner()
        heads, steps = [], []
        for (start, length), prompt, table in zip(spans, PROMPTS, TABLES, strict=False):
            heads += [Rows(prompt, 0, start, table)] if start else []
            steps.append(Rows(prompt, start, start + length, table))
        if heads:
            ours.run(heads)
        batch = hand_made_batch(steps, BLOCK_SIZE, all_rows=all_rows)
        found = as_token_rows(batch, max_rows)
        assert found.shape.has_chunks == (batch.shape.has_chunks and not max_rows)
        answers.append((ours.runner.run(found), ours.pool.nan_to_num()))
    assert torch.equal(answers[0][0], answers[1][0])
    assert torch.equal(answers[0][1], answers[1][1])


def step(lengths: list[int], contexts: list[int], width: int = 4) -> HostBatch:
    return empty_step(lengths, contexts, np.arange(1), np.zeros((len(lengths), width)))


def with_copy(batch: HostBatch) -> HostBatch:
    sections = {
        Section.INPUT_IDS: batch.input_ids,
        Section.POSITIONS: batch.positions,
        Section.SLOT_MAPPING: batch.slot_mapping,
        Section.CONTEXT_LENS: batch.context_lens,
        Section.QUERY_LENS: batch.query_lens,
        Section.LOGITS_ROWS: batch.logits_rows,
        Section.COPIES: np.array([1, 2]),
        Section.BLOCK_TABLES: batch.block_tables,
    }
    return HostBatch.of(sections)


def stays(batch: HostBatch, max_rows: int = 256) -> bool:
    return as_token_rows(batch, max_rows) is batch


def test_a_step_of_more_tokens_than_rows_stays() -> None:
    assert not stays(step([1, 7], [9, 7]), 8)
    assert stays(step([1, 7], [9, 7]), 7)
    assert stays(step([2], [2]), 0)


def test_a_step_without_chunks_stays() -> None:
    assert stays(step([1, 1], [9, 7]))


def test_a_step_that_copies_blocks_or_scores_rows_stays() -> None:
    batch = step([4], [9])
    assert stays(with_copy(batch))
    numbers = np.arange(1, dtype=np.int32)
    assert stays(HostBatch(batch.shape, batch.packed, ScorePlan(numbers, numbers, 0)))


def test_a_chunk_whose_rows_would_read_much_stays() -> None:
    """A chunk reads its context once, and each of its rows by itself; that of a decoding sequence
    is read once in either."""
    long = MAX_CONTEXT_TOKENS // 4
    assert not stays(step([1, 3], [8 * long, long]))
    assert stays(step([1, 5], [8 * long, long]))


def test_a_step_with_wide_tables_stays() -> None:
    width = MAX_TABLE_ENTRIES // 8
    assert not stays(step([8], [8], width))
    assert stays(step([9], [9], width))
