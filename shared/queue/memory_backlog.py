"""The backlog in memory: the twin that tests and one process use."""

from bisect import insort
from collections.abc import Collection, Container
from dataclasses import dataclass

from shared.queue.backlog import (
    MAX_PASSES,
    WINDOW,
    BacklogEntry,
    Placement,
    PutStatus,
    Waiting,
)


@dataclass(frozen=True, order=True)
class _Waiting:
    """Sorts as the backlog does: class, start tag, arrival."""

    priority: int
    start: int
    arrival: int
    entry: BacklogEntry


class MemoryBacklog:
    """`Backlog` in one process."""

    def __init__(self, max_length: int, beats: Container[str]) -> None:
        """`beats`: the gateways that live."""
        self._max_length = max_length
        self._beats = beats
        self._order: list[_Waiting] = []
        self._virtual_times: dict[int, int] = {}
        self._finish_tags: dict[tuple[int, str], int] = {}
        self._num_arrivals = 0
        self._num_passes = 0

    async def put(self, entry: BacklogEntry, max_tokens_ahead: int | None = None) -> Placement:
        for at, waiting in enumerate(self._order):
            if waiting.entry.rid == entry.rid:
                return _placement(PutStatus.QUEUED, self._order[:at])
        if len(self._not_after(entry)) >= self._max_length:
            await self.drop_orphans()
        if len(before := self._not_after(entry)) >= self._max_length:
            return _placement(PutStatus.FULL, before)
        start = self._start_tag(entry)
        key = (entry.priority, start)
        ahead = [item for item in self._order if (item.priority, item.start) <= key]
        placed = _placement(PutStatus.QUEUED, ahead)
        if max_tokens_ahead is not None and placed.tokens_ahead > max_tokens_ahead:
            return _placement(PutStatus.TOO_LATE, ahead)
        self._num_arrivals += 1
        self._finish_tags[entry.priority, entry.tenant] = start + entry.charge
        insort(self._order, _Waiting(*key, self._num_arrivals, entry))
        return placed

    async def pop(self, held: Collection[bytes] = ()) -> BacklogEntry | None:
        if not self._order:
            return None
        head = self._order[0]
        best = head
        if self._num_passes < MAX_PASSES:
            window = [item for item in self._order[:WINDOW] if item.priority == head.priority]
            best = max(window, key=lambda item: _num_held(item.entry, held))
        self._order.remove(best)
        self._num_passes = 0 if best is head else self._num_passes + 1
        self._virtual_times[head.priority] = head.start
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

    def _not_after(self, entry: BacklogEntry) -> list[_Waiting]:
        """Those of its class and of earlier ones."""
        return [item for item in self._order if item.priority <= entry.priority]

    def _start_tag(self, entry: BacklogEntry) -> int:
        priority = entry.priority
        if not any(item.priority == priority for item in self._order):
            tags = self._finish_tags.items()
            self._finish_tags = {flow: tag for flow, tag in tags if flow[0] != priority}
        finish = self._finish_tags.get((priority, entry.tenant), 0)
        return max(self._virtual_times.get(priority, 0), finish)


def _num_held(entry: BacklogEntry, held: Collection[bytes]) -> int:
    """Leading heads the worker holds."""
    count = 0
    for head in entry.heads:
        if head not in held:
            break
        count += 1
    return count


def _placement(status: PutStatus, ahead: list[_Waiting]) -> Placement:
    return Placement(status, len(ahead), sum(item.entry.num_tokens for item in ahead))
