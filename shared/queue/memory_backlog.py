"""The backlog in memory: the twin that tests and one process use."""

from bisect import insort
from collections import defaultdict
from collections.abc import Collection, Container
from dataclasses import dataclass

from shared.queue.backlog import (
    ANY_ROOM,
    MAX_PASSES,
    MOST_PASSED,
    WINDOW,
    BacklogEntry,
    Placement,
    PutStatus,
    Waiting,
    is_early,
)
from shared.queue.room import Room
from shared.queue.turn import Turn
from shared.queue.virtual_time import VirtualTime


@dataclass(frozen=True, order=True)
class _Waiting:
    """Sorts as the backlog does: class, start tag, arrival."""

    priority: int
    start: int
    arrival: int
    entry: BacklogEntry

    def turn(self, long_tokens: float) -> Turn:
        """`long_tokens`: a prompt of more is long."""
        entry = self.entry
        finish, is_long = self.start + entry.charge, entry.num_tokens > long_tokens
        return Turn(self.priority, entry.tenant, self.start, finish, is_long)


class MemoryBacklog:
    """`Backlog` in one process."""

    def __init__(self, max_length: int, beats: Container[str]) -> None:
        """`beats`: the gateways that live."""
        self._max_length = max_length
        self._beats = beats
        self._order: list[_Waiting] = []
        self._times: defaultdict[int, VirtualTime] = defaultdict(VirtualTime)
        """by class"""
        self._num_arrivals = 0
        self._num_passes = self._num_passes_beyond = 0
        """in a row: of the head, and of the first that passes long ones"""

    async def put(
        self, entry: BacklogEntry, max_tokens_ahead: int | None = None, start: int | None = None
    ) -> Placement:
        for at, waiting in enumerate(self._order):
            if waiting.entry.rid == entry.rid:
                return _placement(PutStatus.QUEUED, self._order[:at], waiting.start)
        tag = self._start(entry, start)
        if len(self._ahead_of(entry.priority, tag)) >= self._max_length:
            await self.drop_orphans()
            tag = self._start(entry, start)
        ahead = self._ahead_of(entry.priority, tag)
        if len(ahead) >= self._max_length:
            return _placement(PutStatus.FULL, ahead, tag)
        placed = _placement(PutStatus.QUEUED, ahead, tag)
        if max_tokens_ahead is not None and placed.tokens_ahead > max_tokens_ahead:
            return _placement(PutStatus.TOO_LATE, ahead, tag)
        self._num_arrivals += 1
        tag = self._add(entry, start)
        insort(self._order, _Waiting(entry.priority, tag, self._num_arrivals, entry))
        return placed

    async def pop(self, held: Collection[bytes] = (), room: Room = ANY_ROOM) -> BacklogEntry | None:
        window = self._that_may_go(room)
        if not window:
            return None
        head, first = self._order[0], window[0]
        num_passes = self._num_passes if first is head else self._num_passes_beyond
        best = first
        if num_passes < MAX_PASSES:
            best = max(window, key=lambda item: _num_held(item.entry, held))
        self._order.remove(best)
        num_passes = 0 if best is first else num_passes + 1
        if first is head:
            self._num_passes = num_passes
        else:
            self._num_passes_beyond = num_passes
        self._times[head.priority].take(head.start)
        return best.entry

    async def cancel(self, rid: str) -> bool:
        left = [item for item in self._order if item.entry.rid != rid]
        found = len(left) < len(self._order)
        self._order = left
        return found

    async def drop_orphans(self) -> int:
        owned = [item for item in self._order if item.entry.gateway_incarnation in self._beats]
        num_dropped = len(self._order) - len(owned)
        self._order = owned
        return num_dropped

    async def length(self) -> int:
        return len(self._order)

    async def waiting(self) -> Waiting:
        return Waiting(len(self._order), sum(item.entry.num_tokens for item in self._order))

    def settle(self, priority: int, tenant: str, owed: int) -> None:
        """FINISH: what a request of it was served beyond its charge, or less."""
        if self._waits(priority):
            self._times[priority].settle(tenant, owed)

    def _that_may_go(self, room: Room) -> list[_Waiting]:
        """The first WINDOW of the head's class, to a worker with this room."""
        going: list[_Waiting] = []
        passed: list[Turn] = []
        for item in self._order:
            turn = item.turn(room.long_tokens)
            if len(going) == WINDOW or item.priority != self._order[0].priority:
                break
            if turn.is_long and not room.takes_long(early=is_early(item.priority)):
                if len(passed) == MOST_PASSED:
                    break
                passed.append(turn)
            elif (turn.is_long or room.tokens > 0) and all(map(turn.may_pass, passed)):
                going.append(item)
            else:
                break
        return going

    def _start(self, entry: BacklogEntry, start: int | None) -> int:
        """The tag that it gets."""
        time = self._times[entry.priority]
        if not self._waits(entry.priority):
            time.forget()
        fresh = time.start(entry.tenant)
        return fresh if start is None else min(start, fresh)

    def _ahead_of(self, priority: int, start: int) -> list[_Waiting]:
        """Those that go before one with this tag."""
        return [item for item in self._order if (item.priority, item.start) <= (priority, start)]

    def _add(self, entry: BacklogEntry, start: int | None) -> int:
        time = self._times[entry.priority]
        if start is None:
            return time.add(entry.tenant, entry.charge)
        return time.restore(entry.tenant, start, entry.charge)

    def _waits(self, priority: int) -> bool:
        return any(item.priority == priority for item in self._order)


def _num_held(entry: BacklogEntry, held: Collection[bytes]) -> int:
    """Leading heads the worker holds."""
    count = 0
    for head in entry.heads:
        if head not in held:
            break
        count += 1
    return count


def _placement(status: PutStatus, ahead: list[_Waiting], start: int) -> Placement:
    num_tokens = sum(item.entry.num_tokens for item in ahead)
    return Placement(status, len(ahead), num_tokens, start)
