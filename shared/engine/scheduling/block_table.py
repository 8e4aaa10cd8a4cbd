"""How a sequence gets, names and gives back the blocks of its table.

Copy-on-write. Only full blocks are shared and a sequence writes only behind its cached prefix,
so a shared block would be written in one case: the prefix cache knows every token of a prompt,
and the last token must be computed again for its logits. Then the last block is copied and the
token is written into the copy. A pool too full for the copy computes that block again instead.

A prompt whose log-probabilities are wanted reads no block of the cache: KV is all that is kept of a
token, and its logits come of computing it. Its own blocks enter the cache as any other's.
"""

from array import array
from typing import NamedTuple

from shared.engine.scheduling.batch import BlockCopy
from shared.engine.scheduling.block_pool import NO_PARENT, BlockPool
from shared.engine.scheduling.sequence import Sequence
from shared.kv.block_hash import block_hash


class Taken(NamedTuple):
    """What take_blocks did."""

    num_cached_blocks: int
    """leading blocks of the table that hold their content already"""
    copy: BlockCopy | None
    """to perform first in the next step; then one reference to `src` is the caller's to free"""


def cached_blocks(pool: BlockPool, sequence: Sequence) -> list[int]:
    """Leading blocks of an empty table that the prefix cache has; none of a prompt that is to be
    computed for its log-probabilities."""
    return [] if sequence.scores_prompt else pool.match(sequence.block_hashes)


def take_blocks(
    pool: BlockPool, sequence: Sequence, num_blocks: int, num_spare: int
) -> Taken | None:
    """Fill an empty table with `num_blocks` blocks at once, cached ones first.

    None, and nothing taken, unless `num_spare` further blocks stay available.
    """
    cached = cached_blocks(pool, sequence)
    whole_prompt = len(cached) * pool.block_size == len(sequence.token_ids)
    copies = whole_prompt and sequence.spec.mode != "decode"
    num_fresh = num_blocks - len(cached)
    if copies and num_fresh + 1 + num_spare > pool.num_available_beside(cached):
        copies = False
        cached.pop()
        num_fresh += 1
    if num_fresh + num_spare > pool.num_available_beside(cached):
        return None
    pool.acquire(cached, bulk=sequence.is_bulk)
    fresh = pool.allocate(num_fresh + copies)
    copy = BlockCopy(cached.pop(), fresh[0]) if copies else None
    sequence.block_table = array("i", [*cached, *fresh])
    sequence.num_committed_blocks = len(cached)
    return Taken(len(cached) + copies, copy)


def num_missing(pool: BlockPool, sequence: Sequence, num_blocks: int, num_spare: int) -> int:
    """Blocks that have to become available for `take_blocks`; none if not above 0."""
    cached = cached_blocks(pool, sequence)
    return num_blocks - len(cached) + num_spare - pool.num_available_beside(cached)


def commit_blocks(pool: BlockPool, sequence: Sequence, most: int | None = None) -> None:
    """Name the blocks that became full, so that other sequences find them; the first `most` of
    those that are left.

    Where a twin computed the same content earlier, the table switches to the twin's block, unless
    readers know its own: then it keeps a reference to the twin's besides.
    """
    if not pool.prefix_cache:
        return
    table, twins = sequence.block_table, sequence.twin_blocks
    first, end = sequence.num_committed_blocks, sequence.num_computed_tokens // pool.block_size
    for index in range(first, end if most is None else min(end, first + most)):
        parent = twins.get(index - 1, table[index - 1]) if index else NO_PARENT
        name = _hash_of_block(sequence, index, pool.block_size)
        twin = pool.by_hash.get(name, table[index])
        if twin != table[index] and index < sequence.num_published_blocks:
            pool.acquire((twin,), bulk=sequence.is_bulk)
            twins[index] = twin
        else:
            table[index] = pool.register(table[index], name, parent, bulk=sequence.is_bulk)
        sequence.num_committed_blocks = index + 1


def drop_blocks(pool: BlockPool, sequence: Sequence) -> None:
    """Give back the whole table; full blocks stay findable until they are needed elsewhere."""
    pool.free(sequence.block_table)
    pool.free(list(sequence.twin_blocks.values()))
    sequence.block_table = array("i")
    sequence.twin_blocks.clear()
    sequence.num_committed_blocks = 0
    sequence.num_computed_tokens = 0


def _hash_of_block(sequence: Sequence, index: int, block_size: int) -> bytes:
    """Chain hash of a full block; the chain grows with the sequence."""
    hashes = sequence.block_hashes
    while len(hashes) <= index:
        start = len(hashes) * block_size
        parent = hashes[-1] if hashes else sequence.work.hash_root
        hashes.append(block_hash(parent, sequence.token_ids[start : start + block_size]))
    return hashes[index]
