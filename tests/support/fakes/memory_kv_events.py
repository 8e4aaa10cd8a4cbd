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
        last = self._last(event.incarnation)
        if last == event.seq - 1:
            self._append(event)
            held = self._held.get(event.incarnation, frozenset())
            self._held[event.incarnation] = (held | set(event.stored)) - set(event.removed)
        return event.seq - 1 <= last <= event.seq

    async def reset(self, snapshot: KVSnapshot) -> None:
        if self._last(snapshot.incarnation) < snapshot.seq:
            self._append(KVEvent(snapshot.incarnation, snapshot.seq, reset=True))
        self._held[snapshot.incarnation] = snapshot.held

    async def read(self, after: Mapping[str, int]) -> Sequence[KVEvent]:
        events: list[KVEvent] = []
        for inc, seq in after.items():
            news = [event for event in self._events.get(inc, ()) if event.seq > seq]
            events += news[:MAX_EVENTS_READ]
        return events

    async def snapshot(self, incarnation: str) -> KVSnapshot:
        return KVSnapshot(
            incarnation, self._last(incarnation), self._held.get(incarnation, frozenset())
        )

    def _append(self, event: KVEvent) -> None:
        self._events.setdefault(event.incarnation, deque(maxlen=self._kept)).append(event)

    def _last(self, incarnation: str) -> int:
        events = self._events.get(incarnation)
        return events[-1].seq if events else 0
