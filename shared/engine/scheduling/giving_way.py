"""Which running sequences give way, to one that needs a block or to the head of the queue. Pure.

Of the latest class the one that is cheapest to restore, of equal ones the youngest. To restore a
sequence is to compute the tokens again that no other sequence keeps in the pool: what only this one
holds becomes available, is wanted by others at once, and counts as lost though the prefix cache may
keep some of it. What moves to another worker is computed there, so nothing here makes it cheaper.

The first of all running ranks gives way to nobody of its class as long as there is another one, so
it ends; then the next is the first. What was preempted often enough (`Sequence.pinned`) keeps what
it has.
"""

from bisect import bisect_left
from collections.abc import Sequence as Listed
from itertools import takewhile

from shared.engine.scheduling.block_pool import BlockPool
from shared.engine.scheduling.sequence import Sequence


def num_lost_tokens(sequence: Sequence, pool: BlockPool) -> int:
    """To compute again if it gives way now. Blocks that others hold too are the first of its table,
    and a holder of a block holds all before it."""
    if sequence.spec.mode == "decode" or sequence.scores_prompt:
        return sequence.num_computed_tokens
    counts = pool.ref_counts
    num_shared = bisect_left(sequence.block_table, 1, key=lambda block: counts[block] < 2)
    return max(0, sequence.num_computed_tokens - num_shared * pool.block_size)


def giving_order(sequence: Sequence, pool: BlockPool) -> tuple[int, int, int]:
    """The smallest gives way first."""
    return -sequence.work.priority, num_lost_tokens(sequence, pool), -sequence.arrival


def victim_of(asking: Sequence, running: Listed[Sequence], pool: BlockPool) -> Sequence:
    """The one that gives way to `asking`, which wants a block; it may be that itself. `running`: by
    rank.

    Never one of an earlier rank: those may be scheduled in this step already. Nor one that is
    unverified: somebody may still fill its blocks."""
    found = [one for one in running[running.index(asking) :] if _may_give(one)]
    others = found[1:] if asking is running[0] and len(found) > 1 else found
    return min(others, key=lambda one: giving_order(one, pool))


def givers(head: Sequence, running: Listed[Sequence]) -> list[Sequence]:
    """Those of a later class. What was computed elsewhere would have to come again, so it is not
    asked. `running`: by rank."""
    later = takewhile(lambda one: one.work.priority > head.work.priority, reversed(running))
    return [one for one in later if one.spec.mode == "full" and not one.pinned]


def enough_of(
    found: Listed[Sequence], pool: BlockPool, num_places: int, num_lacking: int
) -> list[Sequence]:
    """That have to give way; none if all of them do not suffice. `num_places`: that are free.
    `num_lacking`: blocks, below 0 where there are more than enough."""
    if num_places > 0 and num_lacking <= 0:
        return []
    chosen: list[Sequence] = []
    for sequence in sorted(found, key=lambda one: giving_order(one, pool)):
        chosen.append(sequence)
        num_places += 1
        num_lacking -= len(sequence.block_table) + (not sequence.whole)  # its spare one
        if num_places > 0 and num_lacking <= 0:
            return chosen
    return []


def _may_give(sequence: Sequence) -> bool:
    kept = sequence.pinned or sequence.unverified or sequence.spec.mode == "prefill"
    return not kept
