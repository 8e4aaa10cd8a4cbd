"""Which cached block goes first: the one released longest ago, in O(log n); of those that only bulk
work has used, where it has left too many.
"""

import heapq

Entry = tuple[int, int]
"""(stamp of the latest touch, block)"""


class EvictionOrder:
    """A set of block ids, popped in the order of their latest touch.

    Two heaps with late deletion, one for what only bulk work has used: an entry counts only while
    its block is a member and its stamp is the block's latest. Stale entries are swept once they
    outnumber the blocks.
    """

    def __init__(self, num_blocks: int) -> None:
        self._stamps = [0] * num_blocks
        self._members: dict[int, bool] = {}
        """whether only bulk work has used it"""
        self._heaps: tuple[list[Entry], list[Entry]] = ([], [])
        """of what others have used too, and of the rest"""
        self._clock = 0

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, block: int) -> bool:
        return block in self._members

    @property
    def num_entries(self) -> int:
        """Heap entries, the stale ones too."""
        return sum(map(len, self._heaps))

    def touch(self, block: int) -> None:
        """The block, not a member now, was just used: its place is the end of the order."""
        self._clock += 1
        self._stamps[block] = self._clock

    def add(self, block: int, *, bulk: bool = False) -> None:
        """Make the block poppable, at the place of its latest touch. `bulk`: only bulk work has
        used it."""
        self._members[block] = bulk
        heapq.heappush(self._heaps[bulk], (self._stamps[block], block))
        if self.num_entries > 2 * len(self._stamps) + 16:
            self._sweep()

    def discard(self, block: int) -> None:
        self._members.pop(block, None)

    def pop(self, *, bulk_first: bool = False) -> int:
        """Remove and return the member touched longest ago; IndexError if there is none.
        `bulk_first`: of those that only bulk work has used, where there is one."""
        others, bulk = map(self._oldest, self._heaps)
        if bulk and (bulk_first or not others or bulk < others):
            _, block = heapq.heappop(self._heaps[True])
        else:
            _, block = heapq.heappop(self._heaps[False])
        del self._members[block]
        return block

    def is_consistent(self) -> bool:
        """Every member has its entry in its heap."""
        entries = tuple(map(set, self._heaps))
        return all(
            (self._stamps[member], member) in entries[bulk]
            for member, bulk in self._members.items()
        )

    def _oldest(self, heap: list[Entry]) -> Entry | None:
        """The first entry that counts; those before it are gone then."""
        while heap:
            stamp, block = heap[0]
            if block in self._members and self._stamps[block] == stamp:
                return heap[0]
            heapq.heappop(heap)
        return None

    def _sweep(self) -> None:
        self._heaps = ([], [])
        for member, bulk in self._members.items():
            self._heaps[bulk].append((self._stamps[member], member))
        for heap in self._heaps:
            heapq.heapify(heap)
