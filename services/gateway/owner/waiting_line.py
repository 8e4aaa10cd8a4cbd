"""Step 4 under saturation: requests that found no worker, in memory and in the pool's backlog.

This process's memory decides; through the backlog a worker with room finds the next request of
any gateway. So a request that Redis lost, or that a worker popped before it died, still waits
here, and the owner places it itself.
"""

import asyncio
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence

from services.gateway.owner.counters import DispatchCounters
from services.gateway.owner.generation import GenerateRequest
from services.gateway.owner.live_request import LiveRequest
from services.gateway.owner.placement.answer_lengths import AnswerLengths
from services.gateway.owner.placement.long_prompts import long_tokens
from services.gateway.owner.placement.router import Placement
from shared.clock import Clock
from shared.errors import StateUnavailableError
from shared.queue.backlog import (
    MOST_PASSED,
    Backlog,
    BacklogEntry,
    PutStatus,
    by_weight,
    heads_of,
)
from shared.queue.throughput import Throughput
from shared.queue.turn import Turn
from shared.queue.virtual_time import VirtualTime
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

    def __init__(self, live: LiveRequest, entry: BacklogEntry, since_s: float, due: int) -> None:
        """`entry`: as the backlog has it. `due`: see PATIENCE; in tokens that have joined the
        line."""
        self.live = live
        self.entry = entry
        self.due = due
        self.start = 0
        """its start tag, as `shared.queue.backlog` has it, among those of this line; of those that
        were on a worker before, before all others"""
        self.finish = 0
        """its start tag, had it come as others do, and its charge"""
        self.since_s = since_s
        self.put_s: float | None = None
        self.backlog_start: int | None = None
        """its start tag in the backlog, once that charged its tenant for it"""
        self.popped = live.machine.epoch > 0
        """its turn has come: a worker took it from the backlog for us to place, or it was on a
        worker before, which had less room than we knew of; at the backlog's end it would wait for
        all that came after it"""
        self.accepted = self.popped or live.request.follows or live.returned
        """it, or the choice it follows, was in the backlog or on a worker before, or its client was
        told to come now: a full backlog ends it no more, then it waits here alone"""
        self.queued = False
        """in the backlog, as far as we know"""

    def turn(self, long_tokens: float) -> Turn:
        """`long_tokens`: a prompt of more is long."""
        entry = self.entry
        is_long = entry.num_tokens > long_tokens
        return Turn(entry.priority, entry.tenant, self.start, self.finish, is_long)


class WaitingLine:
    """Waiting requests by priority, then as the backlog orders them: a gateway that cannot ask it
    serves tenants by the same rule."""

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
        self._times: defaultdict[int, VirtualTime] = defaultdict(VirtualTime)
        """by priority"""
        self._lengths = AnswerLengths()
        self._tasks = Tasks()

    def __len__(self) -> int:
        """Those that may be placed: a request held back holds nobody else up."""
        return self._num_free.total()

    def num_before(self, priority: int) -> int:
        """Those of them that go before a new one of `priority`."""
        return sum(number for each, number in self._num_free.items() if each <= priority)

    def num_ahead(self, request: GenerateRequest, placement: Placement | None) -> int:
        """Those of them that go before this one, of its tenant and of others, if it joins now."""
        num_before = self.num_before(request.priority)
        if not num_before:
            return 0
        tokens = long_tokens(placement)
        turn = self._turn_of_new(request, tokens)
        ahead = [each for each in self._turns(tokens) if each.is_before(turn)]
        if num_before > MOST_PASSED:
            return len(ahead)
        return sum(not turn.may_pass(each) for each in ahead)

    def lets_pass(
        self, request: GenerateRequest, placement: Callable[[], Placement | None]
    ) -> bool:
        """Whether a new request goes to a worker that has room before all that wait."""
        num_before = self.num_before(request.priority)
        if not 0 < num_before <= MOST_PASSED:
            return not num_before
        tokens = long_tokens(placement())
        turn = self._turn_of_new(request, tokens)
        return all(map(turn.may_pass, self._turns(tokens)))

    def going(
        self, waiting: Sequence[LiveRequest], placement: Placement | None
    ) -> Iterator[LiveRequest]:
        """Those of the waiting that go to workers with room, in order: the next one is known when
        the one before has left or stays. One that stays holds up those that may not pass it."""
        tokens, stayed = long_tokens(placement), list[Turn]()
        for live in waiting:
            place = self._places.get(live.rid)
            if place is None:  # it ended with one before it
                continue
            turn = place.turn(tokens)
            if all(map(turn.may_pass, stayed)):
                yield live
                if live.rid not in self._places:
                    continue
            if not turn.is_long or len(stayed) == MOST_PASSED:
                return
            stayed.append(turn)

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
        not begun; both by priority, of equal ones the former by PATIENCE and the latter in the
        order of the line."""
        popped = (place for place in self._places.values() if place.popped)
        waiting = [place for place in popped if self._may_be_placed(place.live)]
        return [place.live for place in sorted(waiting, key=_order)]

    def charge_passing(self, live: LiveRequest) -> None:
        """A new one that goes to a worker before others that wait is charged as if it had joined
        and left. In the backlog its tenant owes it at its end, as all that came without waiting."""
        if self.num_before(live.request.priority) and not live.machine.epoch:
            entry = self._entry(live)
            live.line_charge = entry.charge
            self._times[entry.priority].add(entry.tenant, entry.charge)

    def leave(self, rid: str) -> LiveRequest | None:
        """Take a request out, placed or ended; None if it did not wait."""
        place, was_held = self._places.pop(rid, None), rid in self._held
        self._held.discard(rid)
        if place is None:
            return None
        priority = _priority(place)
        starts = (each.start for each in (place, *self._of_class(priority)))
        self._times[priority].take(min(starts))
        if not was_held:
            self._num_free[priority] -= 1
            self._pace.note_end(self._clock.monotonic_s(), idle=len(self) == 0)
        if place.queued:
            self._cancel(rid)
        return place.live

    def settle(self, live: LiveRequest, num_tokens: int) -> int:
        """At a request's end, with the tokens of its answer: what its tenant owes to those that
        wait in the backlog; here it is noted."""
        request, receipt, num_served = live.request, live.receipt, num_tokens
        if receipt.first_token_ns:
            num_served += len(request.prompt_ids) - receipt.cached_tokens
            self._lengths.note(request.tenant, num_tokens)
        elif receipt.started_ns:  # whoever leaves just before its first token was served as well
            num_served += max(0, len(request.prompt_ids) - live.num_cached_tokens)
        served = by_weight(num_served, request.weight)
        if any(self._of_class(request.priority)):
            self._times[request.priority].settle(request.tenant, served - live.line_charge)
        return served - live.backlog_charge

    def waiting(self, min_age_s: float = 0.0) -> Iterator[LiveRequest]:
        """Those that have waited at least so long and may be placed, in order."""
        until_s = self._clock.monotonic_s() - min_age_s
        places = sorted(self._places.values(), key=lambda each: (_priority(each), each.start))
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
            place = _Place(live, self._entry(live), self._clock.monotonic_s(), due)
            self._charge(place)
            self._places[live.rid] = place
            self._num_free[_priority(place)] += 1
        return place

    def _entry(self, live: LiveRequest) -> BacklogEntry:
        request = live.request
        return BacklogEntry(
            live.rid,
            self._gateway_incarnation,
            request.tenant,
            len(live.work.token_ids),
            request.priority,
            heads_of(live.block_hashes),
            request.weight,
            self._lengths.expected(request.tenant, request.sampling.max_tokens),
        )

    def _charge(self, place: _Place) -> None:
        """Its tenant pays for it once, whatever becomes of its attempts."""
        time, entry = self._times[_priority(place)], place.entry
        if not any(self._of_class(entry.priority)):
            time.forget()
        place.finish = time.start(entry.tenant) + entry.charge
        if place.popped:
            place.start = -1
            return
        place.live.line_charge = entry.charge
        place.start = time.add(entry.tenant, entry.charge)

    def _of_class(self, priority: int) -> Iterator[_Place]:
        return (place for place in self._places.values() if _priority(place) == priority)

    def _turn_of_new(self, request: GenerateRequest, long_tokens: float) -> Turn:
        """If it joins now."""
        start = self._times[request.priority].start(request.tenant)
        is_long = len(request.prompt_ids) > long_tokens
        return Turn(request.priority, request.tenant, start, start, is_long)

    def _turns(self, long_tokens: float) -> Iterator[Turn]:
        """Of those that may be placed."""
        free = (place for rid, place in self._places.items() if rid not in self._held)
        return (place.turn(long_tokens) for place in free)

    def _may_be_placed(self, live: LiveRequest) -> bool:
        return live.machine.waits and live.rid not in self._held

    def _put(self, place: _Place) -> None:
        place.put_s = self._clock.monotonic_s()
        self._tasks.start(self._put_now(place))

    async def _put_now(self, place: _Place) -> None:
        live = place.live
        try:
            placement = await self._backlog.put(place.entry, start=place.backlog_start)
        except StateUnavailableError:
            return
        self._counters.backlog_puts += 1
        if placement.status is PutStatus.QUEUED:
            live.backlog_charge = place.entry.charge
            place.backlog_start = placement.start
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
    return place.entry.priority


def _order(place: _Place) -> tuple[bool, int, int, int]:
    accepted_ns = place.live.receipt.accepted_ns
    if place.live.machine.token_ids:
        return False, _priority(place), place.due, accepted_ns
    return True, _priority(place), place.start, accepted_ns
