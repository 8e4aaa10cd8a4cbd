"""Which running sequences give way to the head of the queue. Pure.

Those of a later priority, the last of them first, and no more than it takes. What was computed
elsewhere would have to come again, so it is not asked; what was preempted often enough keeps what
it has.
"""

from collections.abc import Sequence as Listed
from itertools import takewhile

from shared.engine.scheduling.sequence import Sequence


def givers(head: Sequence, running: Listed[Sequence]) -> list[Sequence]:
    """`running`: by rank."""
    later = takewhile(lambda one: one.work.priority > head.work.priority, reversed(running))
    return [one for one in later if one.spec.mode == "full" and not one.pinned]


def enough_of(found: Listed[Sequence], num_places: int, num_lacking: int) -> list[Sequence]:
    """That have to give way; none if all of them do not suffice. `num_places`: that are free.
    `num_lacking`: blocks, below 0 where there are more than enough."""
    chosen: list[Sequence] = []
    for sequence in found:
        if num_places > 0 and num_lacking <= 0:
            break
        chosen.append(sequence)
        num_places += 1
        num_lacking -= len(sequence.block_table) + 1  # and the one that is spared for it
    return chosen if num_places > 0 and num_lacking <= 0 else []
