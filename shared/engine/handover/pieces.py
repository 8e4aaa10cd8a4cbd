"""What of a prefill's KV may be read after a step: consecutive complete blocks (R11)."""

from shared.engine.scheduling.block_pool import BlockPool
from shared.engine.scheduling.sequence import Sequence
from shared.kv.memory import Piece


def next_pieces(
    pool: BlockPool, sequence: Sequence, num_tokens: int, *, last: bool
) -> tuple[Piece | None, Piece | None]:
    """Blocks that are complete with the first `num_tokens` computed, since the previous call:
    those of the cached prefix, which are there already, and those that are computed. With `last`
    also the partial one at the end.
    """
    end = len(sequence.block_table) if last else num_tokens // pool.block_size
    cached = sequence.num_cached_tokens // pool.block_size
    return _piece(pool, sequence, cached), _piece(pool, sequence, end)


def _piece(pool: BlockPool, sequence: Sequence, end: int) -> Piece | None:
    """Up to this block; None if that was reported."""
    first = sequence.num_published_blocks
    if end <= first:
        return None
    sequence.num_published_blocks = end
    block_ids = tuple(sequence.block_table[first:end])
    return Piece(first, block_ids, tuple(pool.generations[block] for block in block_ids))
