"""The packed tensors of a step say where each token goes and what it may read."""

from array import array

import pytest
import torch

from shared.engine.running.model_runner import to_tensors
from shared.engine.scheduling.batch import (
    BlockCopy,
    ScheduledSequence,
    pack_batch,
    slot_range,
)
from shared.engine.scheduling.sequence import Sequence
from shared.protocol import Sampling
from tests.unit.engine.fake_runner import make_spec


def make_sequence(token_ids: tuple[int, ...], block_table: list[int]) -> Sequence:
    sequence = Sequence(make_spec("a", token_ids, Sampling(max_tokens=4)), 0)
    sequence.block_table = array("i", block_table)
    return sequence


def test_slots_follow_the_block_table_across_borders() -> None:
    assert slot_range([7, 2, 5], 2, 10, 4) == [30, 31, 8, 9, 10, 11, 20, 21]
    assert slot_range([7, 2], 4, 5, 4) == [8]
    assert slot_range([7], 3, 3, 4) == []


def test_a_chunk_and_a_decode_are_packed_without_padding() -> None:
    chunk = make_sequence(tuple(range(100, 112)), [5, 1, 3])
    decode = make_sequence(tuple(range(6)), [2, 9])
    batch = to_tensors(
        pack_batch(
            [
                ScheduledSequence(chunk, 4, 4, False, True),
                ScheduledSequence(decode, 5, 1, True, False),
            ],
            [BlockCopy(8, 9)],
            4,
        )
    )
    assert batch.input_ids.tolist() == [104, 105, 106, 107, 5]
    assert batch.positions.tolist() == [4, 5, 6, 7, 5]
    assert batch.slot_mapping.tolist() == [4, 5, 6, 7, 37]
    assert batch.context_lens.tolist() == [8, 6] == list(batch.context_lens_host)
    assert batch.block_tables.tolist() == [[5, 1], [2, 9]]
    assert batch.logits_rows.tolist() == [4]
    assert batch.copies.tolist() == [[8, 9]]
    assert batch.query_lens == (4, 1)
    assert {batch.input_ids.dtype, batch.slot_mapping.dtype, batch.copies.dtype} == {torch.int64}
    assert {batch.context_lens.dtype, batch.block_tables.dtype} == {torch.int32}


def test_no_copies_have_the_same_shape() -> None:
    packed = pack_batch([ScheduledSequence(make_sequence((1,), [0]), 0, 1, True, True)], [], 4)
    assert to_tensors(packed).copies.shape == (0, 2)


def test_a_token_nobody_here_knows_yet_is_taken_from_the_step_before() -> None:
    known, awaited = make_sequence((5, 6), [0]), make_sequence((7, 8, 9), [1])
    packed = pack_batch(
        [
            ScheduledSequence(known, 1, 1, True, False),
            ScheduledSequence(awaited, 3, 1, True, False),
        ],
        [],
        4,
        {awaited: 1},
    )
    assert packed.input_ids.tolist() == [6, -2]
    assert packed.awaits_tokens
    assert to_tensors(packed, torch.tensor([40, 41])).input_ids.tolist() == [6, 41]
    with pytest.raises(AssertionError):
        to_tensors(packed)
