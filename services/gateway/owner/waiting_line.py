"""Step 4 under saturation: requests that found no worker, in memory and in the pool's backlog.

This process's memory decides; through the backlog a worker with room finds the next request of
any gateway. So a request that Redis lost, or that a worker popped before it died, still waits
here, and the owner places it itself.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Iterator

from services.gateway.owner.counters import DispatchCounters
from services.gateway.owner.live_request import LiveRequest
from services.gateway.owner.placement.throughput import Throughput
from shared.clock import Clock
from shared.errors import StateUnavailableError
from shared.queue.backlog import Backlog, BacklogEntry, PutStatus, heads_of
from shared.tasks import Tasks

REPEAT_PUT_S = 5.0
FULL_S = 3.0
"""a backlog that was full is emptied by the workers for so long: nobody may own what fills it"""
MAX_CANCELS = 10_000
PATIENCE = 4
"""Of requests that failed, one lets later ones go first until that many times its own tokens have
joined after it: of those that a fault sends back together the shortest go on first."""


class _Place:
    """One waiting request."""

    def __init__(self, live: LiveRequest, since_s: float, due: int) -> None:
        """`due`: see PATIENCE; in tokens that have joined the line."""
        self.live = live
        self.due = due
        self.since_s = since_s
        self.put_s: float | None = None
        self.popped = live.machine.epoch > 0
        """its turn has come: a worker took it from the backlog for us to place, or it was on a
        worker before, which had less room than we knew of; at the backlog's end it would wait for
        all that came after it"""
        self.accepted = self.popped or live.request.follows or live.returned
        """it, or the choice it follows, was in the backlog or on a worker before, or its client was
        told to come now: a full backlog ends it no more, then it waits here alone"""
        self.queued = False
        """in the backlog, as far as we know"""


class WaitingLine:
    """Waiting requests by priority, then in order of arrival."""

    def __init__(
        self,
        gateway_incarnation: str,
        backlog: Backlog,
        counters: DispatchCounters,
        clock: Clock,
        grew: Callable[[], None],
    ) -> None:
        """`grew()`: workers may want to know."""
        self.on_full: Callable[[LiveRequest], None] = lambda live: None
        """called with a request that the full backlog did not take"""
        self._gateway_incarnation = gateway_incarnation
        self._backlog = backlog
        self._counters = counters
        self._clock = clock
        self._grew = grew
        self._places: dict[str, _Place] = {}
        self._num_joined_tokens = 0
        self._uncancelled: dict[str, None] = {}
        """rids that may still be in the backlog and must not, for Redis was away; oldest first"""
        self._cancelling: asyncio.Task[None] | None = None
        self._full_s = -math.inf
        """when the backlog was last found full"""
        self._pace = Throughput()
        """at which requests leave the line"""
        self._held: set[str] = set()
        """rids of those that may not be placed yet"""
        self._num_free = Counter[int]()
        """of the others, by priority"""
        self._tasks = Tasks()

    def __len__(self) -> int:
        """Those that may be placed: a request held back holds nobody else up."""
        return self._num_free.total()

    def num_before(self, priority: int) -> int:
        """Those of them that go before a new one of `priority`."""
        return sum(number for each, number in self._num_free.items() if each <= priority)

    @property
    def num_backlogged(self) -> int:
        """Of ours, known to be in the backlog; at least one while it was full of others'."""
        num_queued = sum(place.queued for place in self._places.values())
        was_full = self._clock.monotonic_s() - self._full_s < FULL_S
        return max(num_queued, was_full)

    @property
    def per_place_s(self) -> float:
        """Seconds from one request's leaving to the next's, as it is to be expected."""
        return self._pace.expected_end_s(self._clock.monotonic_s())

    def join(self, live: LiveRequest, *, no_room: bool) -> None:
        """Wait; in the backlog too when workers live but have no room."""
        place = self._place_of(live)
        self._pace.note_work(self._clock.monotonic_s())
        if no_room and place.put_s is None and not place.popped:
            self._put(place)

    def hold(self, live: LiveRequest) -> None:
        """Wait, and not be placed before it has left and joins again."""
        place = self._place_of(live)
        if live.rid not in self._held:
            self._held.add(live.rid)
            self._num_free[_priority(place)] -= 1

    def note_popped(self, rid: str) -> bool:
        """A worker popped it: its turn has come. False if it does not wait here."""
        place = self._places.get(rid)
        if place is not None:
            place.popped, place.queued = True, False
        return place is not None

    def popped(self) -> list[LiveRequest]:
        """Those whose turn has come: first those whose clients read already, then those that have
        not begun; both by priority, of equal ones the former by PATIENCE and the latter first come,
        first placed."""
        popped = (place for place in self._places.values() if place.popped)
        waiting = [place for place in popped if self._may_be_placed(place.live)]
        return [place.live for place in sorted(waiting, key=_turn)]

    def leave(self, rid: str) -> LiveRequest | None:
        """Take a request out, placed or ended; None if it did not wait."""
        place, was_held = self._places.pop(rid, None), rid in self._held
        self._held.discard(rid)
        if place is None:
            return None
        if not was_held:
            self._num_free[_priority(place)] -= 1
            self._pace.note_end(self._clock.monotonic_s(), idle=len(self) == 0)
        if place.queued:
            self._cancel(rid)
        return place.live

    def waiting(self, min_age_s: float = 0.0) -> Iterator[LiveRequest]:
        """Those that have waited at least so long and may be placed, by priority, then the longest
        first."""
        until_s = self._clock.monotonic_s() - min_age_s
        places = sorted(self._places.values(), key=_priority)
        return (p.live for p in places if p.since_s <= until_s and self._may_be_placed(p.live))

    def repeat_puts(self) -> None:
        """Tell the backlog again now and then: Redis may have lost it, or been away."""
        self._repeat_cancels()
        before_s = self._clock.monotonic_s() - REPEAT_PUT_S
        for place in self._places.values():
            if place.put_s is not None and place.put_s <= before_s and not place.popped:
                self._put(place)

    async def close(self) -> None:
        await self._tasks.close()

    def _place_of(self, live: LiveRequest) -> _Place:
        place = self._places.get(live.rid)
        if place is None:
            num_tokens = len(live.work.token_ids)
            due = self._num_joined_tokens + PATIENCE * num_tokens
            self._num_joined_tokens += num_tokens
            place = self._places[live.rid] = _Place(live, self._clock.monotonic_s(), due)
            self._num_free[_priority(place)] += 1
        return place

    def _may_be_placed(self, live: LiveRequest) -> bool:
        return live.machine.waits and live.rid not in self._held

    def _put(self, place: _Place) -> None:
        place.put_s = self._clock.monotonic_s()
        self._tasks.start(self._put_now(place))

    async def _put_now(self, place: _Place) -> None:
        live = place.live
        entry = BacklogEntry(
            live.rid,
            self._gateway_incarnation,
            live.request.tenant,
            len(live.work.token_ids),
            live.request.priority,
            heads_of(live.block_hashes),
            live.request.weight,
        )
        try:
            placement = await self._backlog.put(entry)
        except StateUnavailableError:
            return
        self._counters.backlog_puts += 1
        if self._places.get(live.rid) is not place:
            self._cancel(live.rid)
        elif placement.status is PutStatus.QUEUED:
            place.queued = place.accepted = True
            live.note_placed()
            self._grew()
        else:
            self._full_s = self._clock.monotonic_s()
            self._grew()
            if not place.accepted:
                self.on_full(live)

    def _cancel(self, rid: str) -> None:
        self._tasks.start(self._cancel_now(rid))

    async def _cancel_now(self, rid: str) -> None:
        try:
            await self._backlog.cancel(rid)
        except StateUnavailableError:
            self._uncancelled[rid] = None
            if len(self._uncancelled) > MAX_CANCELS:
                del self._uncancelled[next(iter(self._uncancelled))]

    def _repeat_cancels(self) -> None:
        """One at a time: Redis was away, and may still be."""
        if self._uncancelled and (self._cancelling is None or self._cancelling.done()):
            self._cancelling = self._tasks.start(self._cancel_again())

    async def _cancel_again(self) -> None:
        while self._uncancelled:
            rid = next(iter(self._uncancelled))
            try:
                await self._backlog.cancel(rid)
            except StateUnavailableError:
                return
            self._uncancelled.pop(rid, None)


def _priority(place: _Place) -> int:
    return place.live.request.priority


def _turn(place: _Place) -> tuple[bool, int, int]:
    live = place.live
    if live.machine.token_ids:
        return False, _priority(place), place.due
    return True, _priority(place), live.receipt.accepted_ns
