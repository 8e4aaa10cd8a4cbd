"""Which sequences want one more block for their next token, now or later. Pure."""

from collections.abc import Iterable

from shared.engine.scheduling.sequence import Sequence, SequenceState

_DECODING = (SequenceState.DECODE, SequenceState.VERIFIED)


def is_full(sequence: Sequence, block_size: int) -> bool:
    """Its next token needs a block more."""
    return sequence.num_scheduled_tokens // block_size >= len(sequence.block_table)


def num_wanted_blocks(running: Iterable[Sequence], max_model_len: int, block_size: int) -> int:
    """By the next step, for the tokens that it decodes."""
    return sum(
        sequence.state in _DECODING
        and not sequence.unverified
        and not sequence.ends_in_flight(max_model_len)
        and is_full(sequence, block_size)
        for sequence in running
    )


def num_spare_blocks(running: Iterable[Sequence], reserved: Iterable[Sequence]) -> int:
    """One block of growth for each sequence that will want one, so that admitting a sequence does
    not preempt another at once."""
    decoding = (sequence for sequence in running if sequence.spec.mode != "prefill")
    return sum(not sequence.whole for sequence in (*decoding, *reserved))
