"""What of a prefill's KV may be read after a step: consecutive complete blocks (R11)."""

from shared.engine.scheduling.block_pool import BlockPool
from shared.engine.scheduling.sequence import Sequence
from shared.kv.memory import Piece


def next_pieces(pool: BlockPool, sequence: Sequence, *, last: bool) -> list[Piece]:
    """Blocks completed since the previous call; with `last` also the partial one at the end.

    The cached prefix is apart, the first: it may be there already.
    """
    table = sequence.block_table
    end = len(table) if last else sequence.num_computed_tokens // pool.block_size
    cached = sequence.num_cached_tokens // pool.block_size
    pieces: list[Piece] = []
    for stop in (cached, end):
        first = sequence.num_published_blocks
        if stop > first:
            block_ids = tuple(table[first:stop])
            generations = tuple(pool.generations[block] for block in block_ids)
            pieces.append(Piece(first, block_ids, generations))
            sequence.num_published_blocks = stop
    return pieces
