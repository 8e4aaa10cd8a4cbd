"""The two ends of the KV events: a worker's publisher and a gateway's feed.

Both keep their place by numbers alone and repair themselves: the publisher writes its whole
state when Redis stands elsewhere, the feed reads a snapshot when numbers are missing.
"""

from collections.abc import Collection, Iterable
from itertools import islice

from shared.kv.block_hash import STRIDE
from shared.state.kv_events import MAX_EVENT_HASHES, KVEvent, KVEvents, KVSnapshot
from shared.state.prefix_index import PrefixIndex

KEEPALIVE_S = 10.0
"""`flush` at least this often: it notices lost data and keeps the keys from expiring"""


class KVPublisher:
    """Collects what one worker's cache stores and removes, and tells it in numbered events.

    `note` may be called at any time; `flush` by one task only.
    """

    def __init__(self, events: KVEvents, incarnation: str, stride: int = STRIDE) -> None:
        self._events = events
        self._incarnation = incarnation
        self._stride = stride
        self._held: set[bytes] = set()
        self._told: set[bytes] = set()
        self._changed: dict[bytes, None] = {}
        self._last = KVEvent(incarnation, 0)
        self._in_doubt = False
        """the last event was sent and not acknowledged"""
        self._must_reset = False

    @property
    def held(self) -> frozenset[bytes]:
        """Published hashes the cache holds now."""
        return frozenset(self._held)

    @property
    def has_changes(self) -> bool:
        return bool(self._changed) or self._must_reset or self._in_doubt

    def note(self, stored: Iterable[tuple[bytes, int]], removed: Iterable[bytes]) -> None:
        """Changes of one engine step: removals first, then (hash, depth in blocks) stored."""
        for block_hash in removed:
            if block_hash in self._held:
                self._held.remove(block_hash)
                self._changed[block_hash] = None
        for block_hash, depth in stored:
            if depth % self._stride == 0 and block_hash not in self._held:
                self._held.add(block_hash)
                self._changed[block_hash] = None

    async def flush(self) -> None:
        """Publishes what changed; with nothing new it only checks and keeps alive.

        StateUnavailableError leaves everything to be told by the next flush.
        """
        if self._must_reset:
            await self._reset()
        elif self._in_doubt or not self._changed:
            await self._tell(self._last)
        while self._changed:
            event = self._next_event()
            if event.stored or event.removed:
                await self._tell(event)

    def _next_event(self) -> KVEvent:
        batch = tuple(islice(self._changed, MAX_EVENT_HASHES))
        stored = tuple(item for item in batch if item in self._held and item not in self._told)
        removed = tuple(item for item in batch if item in self._told and item not in self._held)
        for item in batch:
            del self._changed[item]
        return KVEvent(self._incarnation, self._last.seq + 1, stored, removed)

    async def _tell(self, event: KVEvent) -> None:
        self._last = event
        self._in_doubt = True
        self._told.update(event.stored)
        self._told.difference_update(event.removed)
        if not await self._events.publish(event):
            await self._reset()
        self._in_doubt = False

    async def _reset(self) -> None:
        self._must_reset = True
        self._last = KVEvent(self._incarnation, self._last.seq + 1)
        self._told = set(self._held)
        self._changed.clear()
        await self._events.reset(
            KVSnapshot(self._incarnation, self._last.seq, frozenset(self._told))
        )
        self._must_reset = self._in_doubt = False


class PrefixFeed:
    """Keeps a gateway's PrefixIndex up to date with the workers it knows."""

    def __init__(self, events: KVEvents, index: PrefixIndex) -> None:
        self._events = events
        self._index = index

    async def poll(self, incs: Collection[str]) -> None:
        """One read for all workers, one snapshot for each that is new or has a gap.

        Workers not in `incs` are dropped: entries die with their incarnation.
        """
        for inc in self._index.incarnations() - set(incs):
            self._index.drop(inc)
        positions = {inc: self._index.position(inc) for inc in incs}
        known = {inc: seq for inc, seq in positions.items() if seq is not None}
        for event in await self._events.read(known):
            self._index.apply(event)
        for inc in incs:
            if self._index.position(inc) is None:
                self._index.load(await self._events.snapshot(inc))
