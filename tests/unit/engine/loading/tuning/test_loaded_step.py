"""Steps that are timed have the shape of those that serve."""

from hypothesis import given
from hypothesis import strategies as st

from shared.engine.loading.tuning.loaded_step import decode_step, full_step
from shared.engine.scheduling.batch import SKIP_SLOT, HostBatch


def check(batch: HostBatch, num_blocks: int) -> None:
    assert (batch.slot_mapping == SKIP_SLOT).all()
    assert batch.query_lens.sum() == batch.shape.num_tokens == len(batch.positions)
    assert (batch.query_lens <= batch.context_lens).all()
    assert batch.shape.num_logits_rows == batch.shape.num_sequences
    assert 0 <= batch.block_tables.min() <= batch.block_tables.max() < num_blocks


def test_each_sequence_decodes_at_its_last_position() -> None:
    batch = decode_step(3, 20, 6, 8)
    check(batch, 6)
    assert batch.positions.tolist() == [19, 19, 19]
    assert batch.context_lens.tolist() == [20, 20, 20]
    assert batch.block_tables.tolist() == [[0, 1, 2], [3, 4, 5], [0, 1, 2]]


def test_one_prompt_fills_what_decoding_leaves() -> None:
    batch, num_prompt = full_step(64, 4, 20, 1000, 9, 8)
    check(batch, 9)
    assert batch.query_lens.tolist() == [1, 1, 1, 61]
    assert num_prompt == 61
    assert batch.positions[3:].tolist() == list(range(61))
    assert batch.logits_rows.tolist() == [0, 1, 2, 63]


@given(
    num_seqs=st.integers(1, 40),
    spare=st.integers(0, 500),
    longest=st.integers(1, 200),
    block_size=st.integers(1, 32),
    num_blocks=st.integers(1, 50),
)
def test_a_full_step_is_as_full_as_its_sequences_can_make_it(
    num_seqs: int, spare: int, longest: int, block_size: int, num_blocks: int
) -> None:
    num_tokens = num_seqs - 1 + block_size + spare
    context = min(100, longest)
    batch, num_prompt = full_step(num_tokens, num_seqs, context, longest, num_blocks, block_size)
    check(batch, num_blocks)
    assert batch.shape.num_sequences <= num_seqs
    assert batch.shape.num_tokens == min(num_tokens, num_seqs * longest)
    assert batch.query_lens.max() <= max(longest, 1)
    num_decoding = batch.shape.num_tokens - num_prompt
    assert (batch.query_lens[:num_decoding] == 1).all()
    assert num_prompt > 0
