"""KV events in memory: the twin that tests and one process use."""

from collections import deque
from collections.abc import Mapping, Sequence

from shared.state.kv_events import EVENTS_KEPT, MAX_EVENTS_READ, KVEvent, KVSnapshot


class MemoryKVEvents:
    """`KVEvents` in one process."""

    def __init__(self, kept: int = EVENTS_KEPT) -> None:
        self._kept = kept
        self._events: dict[str, deque[KVEvent]] = {}
        self._held: dict[str, frozenset[bytes]] = {}

    async def publish(self, event: KVEvent) -> bool:
        last = self._last(event.inc)
        if last == event.seq - 1:
            self._append(event)
            held = self._held.get(event.inc, frozenset())
            self._held[event.inc] = (held | set(event.stored)) - set(event.removed)
        return event.seq - 1 <= last <= event.seq

    async def reset(self, snapshot: KVSnapshot) -> None:
        if self._last(snapshot.inc) < snapshot.seq:
            self._append(KVEvent(snapshot.inc, snapshot.seq, reset=True))
        self._held[snapshot.inc] = snapshot.held

    async def read(self, after: Mapping[str, int]) -> Sequence[KVEvent]:
        events: list[KVEvent] = []
        for inc, seq in after.items():
            news = [event for event in self._events.get(inc, ()) if event.seq > seq]
            events += news[:MAX_EVENTS_READ]
        return events

    async def snapshot(self, inc: str) -> KVSnapshot:
        return KVSnapshot(inc, self._last(inc), self._held.get(inc, frozenset()))

    def _append(self, event: KVEvent) -> None:
        self._events.setdefault(event.inc, deque(maxlen=self._kept)).append(event)

    def _last(self, inc: str) -> int:
        events = self._events.get(inc)
        return events[-1].seq if events else 0
