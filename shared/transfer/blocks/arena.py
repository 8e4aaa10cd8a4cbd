"""Room for blocks on their way between a socket and a GPU's pool.

One run of host memory, shared with the mover. Whoever needs room waits for those who asked before;
room is given back in any order.
"""

import asyncio
from bisect import insort
from collections import deque


class Arena:
    """All calls on one event loop."""

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._taken: list[slice] = []
        """in the order of their places"""
        self._waiting: deque[tuple[int, asyncio.Future[slice]]] = deque()

    @property
    def num_bytes(self) -> int:
        return len(self._view)

    def view(self, room: slice) -> memoryview:
        return self._view[room]

    async def take(self, num_bytes: int) -> slice:
        """`give_back` must follow. ValueError for more than there is."""
        if not 0 < num_bytes <= self.num_bytes:
            raise ValueError(f"{num_bytes} bytes of an arena of {self.num_bytes}")
        given: asyncio.Future[slice] = asyncio.get_running_loop().create_future()
        self._waiting.append((num_bytes, given))
        self._give()
        try:
            return await given
        except asyncio.CancelledError:
            if given.done() and not given.cancelled():
                self.give_back(given.result())
            self._give()
            raise

    def give_back(self, room: slice) -> None:
        """Nothing touches it any more."""
        self._taken.remove(room)
        self._give()

    def _give(self) -> None:
        """Room to those who wait, in their order."""
        while self._waiting:
            num_bytes, given = self._waiting[0]
            if not given.cancelled():
                room = self._first_fit(num_bytes)
                if room is None:
                    return
                insort(self._taken, room, key=_start)
                given.set_result(room)
            self._waiting.popleft()

    def _first_fit(self, num_bytes: int) -> slice | None:
        start = 0
        for taken in [*self._taken, slice(self.num_bytes, None)]:
            if taken.start - start >= num_bytes:
                return slice(start, start + num_bytes)
            start = taken.stop
        return None


def _start(room: slice) -> int:
    start: int = room.start
    return start
