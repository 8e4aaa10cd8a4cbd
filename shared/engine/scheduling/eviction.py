"""Which cached block goes first: the one released longest ago, in O(log n)."""

import heapq


class EvictionOrder:
    """A set of block ids, popped in the order of their latest touch.

    A heap with late deletion: an entry counts only while its block is a member and its stamp is
    the block's latest. Stale entries are swept once they outnumber the blocks.
    """

    def __init__(self, num_blocks: int) -> None:
        self._stamps = [0] * num_blocks
        self._members: set[int] = set()
        self._heap: list[tuple[int, int]] = []
        self._clock = 0

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, block: int) -> bool:
        return block in self._members

    @property
    def num_entries(self) -> int:
        """Heap entries, the stale ones too."""
        return len(self._heap)

    def touch(self, block: int) -> None:
        """The block, not a member now, was just used: its place is the end of the order."""
        self._clock += 1
        self._stamps[block] = self._clock

    def add(self, block: int) -> None:
        """Make the block poppable, at the place of its latest touch."""
        self._members.add(block)
        self._push(block)

    def discard(self, block: int) -> None:
        self._members.discard(block)

    def pop(self) -> int:
        """Remove and return the member touched longest ago; IndexError if there is none."""
        while True:
            stamp, block = heapq.heappop(self._heap)
            if block in self._members and self._stamps[block] == stamp:
                self._members.discard(block)
                return block

    def is_consistent(self) -> bool:
        """Every member has its entry in the heap."""
        entries = set(self._heap)
        return all((self._stamps[member], member) in entries for member in self._members)

    def _push(self, block: int) -> None:
        heapq.heappush(self._heap, (self._stamps[block], block))
        if len(self._heap) > 2 * len(self._stamps) + 16:
            self._heap = [(self._stamps[member], member) for member in self._members]
            heapq.heapify(self._heap)
