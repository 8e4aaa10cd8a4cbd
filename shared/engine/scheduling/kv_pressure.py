"""What is done where KV blocks run short: the three policies of --on-kv-pressure. Pure.

    preempt  a sequence is admitted with the blocks of its known tokens and grows block by block;
             where none is left, one gives way (giving_way.py)
    queue    it is admitted only with every block that it can ever need; the head of the queue waits
             for these, and everybody behind it
    reject   the same, and a prompt that would have to wait for blocks is not taken

With `queue` and `reject` no sequence grows, so none is preempted for the sake of an equal. The head
of the queue still takes blocks from later classes. What was taken once waits, and is never refused.
"""

from collections.abc import Iterable
from collections.abc import Sequence as Listed

from shared.engine.scheduling.block_pool import BlockPool
from shared.engine.scheduling.block_table import cached_blocks
from shared.engine.scheduling.giving_way import givers
from shared.engine.scheduling.sequence import Sequence, max_blocks
from shared.kv.layout import num_blocks_for
from shared.settings.groups import KVPressure


def takes_whole(policy: KVPressure, sequence: Sequence) -> bool:
    """Whether it is admitted only with every block that it can ever need."""
    return policy != "preempt" or sequence.pinned


def num_blocks_to_admit(
    policy: KVPressure, sequence: Sequence, max_model_len: int, block_size: int
) -> int:
    """Of its known tokens, or all that it can ever need."""
    if takes_whole(policy, sequence):
        return max_blocks(sequence.spec, max_model_len, block_size)
    return num_blocks_for(len(sequence.token_ids), block_size)


def may_be_refused(policy: KVPressure, sequence: Sequence) -> bool:
    """A prompt that no worker has taken yet. What another worker computes is taken."""
    work = sequence.work
    taken = work.accepted or sequence.spec.mode == "decode" or sequence.num_output_tokens > 0
    return policy == "reject" and not taken


def would_wait(
    sequence: Sequence,
    queued: Iterable[Sequence],
    running: Listed[Sequence],
    pool: BlockPool,
    max_model_len: int,
) -> bool:
    """Whether a newcomer would have to wait for blocks: those that are available, and what later
    classes would give, are fewer than it and all that are `queued` before it will take. They hold
    no block yet."""
    priority = sequence.work.priority
    before = (one for one in queued if one.work.priority <= priority)
    wanted = sum(_num_drawn(one, pool, max_model_len) for one in (*before, sequence))
    given = sum(len(one.block_table) for one in givers(sequence, running))
    return wanted > pool.num_available + given


def _num_drawn(sequence: Sequence, pool: BlockPool, max_model_len: int) -> int:
    """By how much the available blocks shrink when it is admitted whole. Blocks of its prefix that
    others hold cost nothing; once nobody does they are available, and cost what they add. That of
    the last token, which is computed in any case, is its own. Between two steps nothing changes,
    and each that arrives asks it of all that are queued: so it is kept."""
    if sequence.drawn_version != pool.version:
        most = (len(sequence.token_ids) - 1) // pool.block_size
        shared = sum(pool.ref_counts[block] > 0 for block in cached_blocks(pool, sequence)[:most])
        sequence.num_drawn = max_blocks(sequence.spec, max_model_len, pool.block_size) - shared
        sequence.drawn_version = pool.version
    return sequence.num_drawn
