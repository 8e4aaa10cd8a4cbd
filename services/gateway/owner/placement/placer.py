"""Chooses workers for requests, from what is known of both at this moment (steps 3 and 5).

The rules are pure (`router`, `avoidance`, `failures`). Here they get the linked workers, the
prefixes these have cached, and what has failed lately; and what was chosen is charged.
"""

import random
from collections.abc import Iterable
from dataclasses import replace

from services.gateway.owner.convicts import Convicts
from services.gateway.owner.identity import GatewayIdentity
from services.gateway.owner.links.worker_link import WorkerLink
from services.gateway.owner.links.worker_links import WorkerLinks
from services.gateway.owner.links.worker_view import tokens_per_s
from services.gateway.owner.live_request import LiveRequest
from services.gateway.owner.machine.effects import Effect
from services.gateway.owner.placement.answer_time import AnswerTime, answer_time, whose_way
from services.gateway.owner.placement.avoidance import Avoidance, Key
from services.gateway.owner.placement.failures import Failures
from services.gateway.owner.placement.kv_room import has_kv_room, with_blocks
from services.gateway.owner.placement.router import (
    Placement,
    Prompt,
    Route,
    choose_decode,
    choose_placement,
    choose_worker,
    moving_route,
    reachable,
)
from services.gateway.owner.placement.suspect_lane import SuspectLane
from services.gateway.owner.records.journal import Journal
from shared.clock import Clock
from shared.state.prefix_index import PrefixIndex


class Placer:
    """Knows where requests may go. Called on the event loop."""

    def __init__(
        self,
        identity: GatewayIdentity,
        links: WorkerLinks,
        index: PrefixIndex,
        journal: Journal,
        clock: Clock,
    ) -> None:
        self._identity = identity
        self._links = links
        self._index = index
        self._journal = journal
        self._clock = clock
        self._failures = Failures()
        self.note_success = self._failures.note_success
        self._lane = SuspectLane(clock)
        self.convicts = Convicts(identity.model, clock)
        """requests that may go nowhere"""
        self._rng = random.Random(identity.gateway_incarnation)  # noqa: S311 -- spreads load, hides nothing

    def placement(self) -> Placement | None:
        """Where prompts may go now; None when nobody can serve."""
        links, topology = self._links, self._identity.topology
        return choose_placement(links.views, topology, links.prefill_seen(topology))

    def look(self) -> None:
        """Many times a second: which workers there are."""
        self._lane.note(self._links.views)
        self._failures.note_paces(self._links.paces(), self._clock.monotonic_s())

    def spares_a_worker(self, live: LiveRequest) -> bool:
        """One that takes prompts may die of this."""
        return self._lane.spares_a_worker(live.machine.strikes.crashes, self.placement())

    def takes_prompts(self, worker: WorkerLink) -> bool:
        """Whether prompts may go there now: to a decode worker none while prefill lives."""
        placement = self.placement()
        return placement is not None and any(view is worker.view for view in placement.workers)

    def trouble(self) -> str:
        """Which workers do not hand over; nothing when all is well."""
        linked = {view.incarnation for view in self._links.views}
        return self._failures.trouble(linked, self._clock.monotonic_s())

    def route(self, live: LiveRequest) -> Route | None:
        """The best worker with room; None if there is none."""
        placement = self.placement()
        if placement is None:
            return None
        prompt = self._prompt(live)
        placement = reachable(placement, self._links.views, prompt.avoidance)
        if not self._lane.spares_a_worker(live.machine.strikes.crashes, placement):
            return None
        return choose_worker(with_blocks(placement, live), prompt, self._rng)

    def answer_time(self, live: LiveRequest, route: Route | None) -> AnswerTime:
        """Until its answer can be whole, if it goes this way; None: whichever comes free."""
        takers, readers = whose_way(route, self.placement(), self._links.views)
        reader = self.reader(live, route.incarnation) if route and route.mode == "prefill" else None
        readers = [reader.view] if reader else readers
        return answer_time(live, self.num_uncached(live), takers, readers, self._links.gaps_s())

    def has_kv_room(self, live: LiveRequest, others: Iterable[LiveRequest]) -> bool:
        """Whether decode workers have blocks for it besides those `others` of this gateway."""
        return has_kv_room(live, others, self._links.views, self._index.holders(live.block_hashes))

    def assign(self, live: LiveRequest, route: Route) -> list[Effect]:
        """The waiting epoch goes there."""
        worker = self._links.get(route.incarnation)
        assert worker is not None
        worker.charge(live.rid, len(live.work.token_ids), early=live.is_early)
        self._note_choice(live, (route.incarnation,))
        live.assignment.note_route(route)
        live.note_placed()
        self._journal.assigned(live, worker.worker_id)
        return live.machine.assign(route.incarnation, route.mode, route.reason)

    def assign_to(self, live: LiveRequest, source: str) -> list[Effect]:
        """The waiting epoch begins where the last one was decoded, to be handed over from there."""
        worker = self._links.get(source)
        assert worker is not None
        return self.assign(live, moving_route(worker.view, self._prompt(live)))

    def reader(self, live: LiveRequest, source: str) -> WorkerLink | None:
        """The best decode worker to pull it from there; None if none is ready."""
        prompt = replace(self._prompt(live), num_tokens=live.num_decode_tokens)
        return self._links.get(choose_decode(self._links.views, prompt, source))

    def may_move(self, live: LiveRequest, source: str, num_blocks: int) -> bool:
        """Whether another decode worker can go on with it at once, and has that many blocks."""
        now_s, reader = self._clock.monotonic_s(), self.reader(live, source)
        closed = self._failures.closed_to(now_s)
        if reader is None or (source, reader.incarnation) in closed or reader.load.waiting:
            return False
        return reader.view.spare_blocks >= num_blocks

    def choose_decode(self, live: LiveRequest) -> list[Effect]:
        """Step 5: prefill has started, so decode may reserve. With no decode worker alive the
        choice waits for one, unless a decode worker is the source: it may serve again itself."""
        source = live.machine.prefill_incarnation or ""
        crashes = live.machine.strikes.crashes
        if not self._lane.spares_a_reader(crashes, self._links.views, source):
            return []
        worker, holder = self.reader(live, source), self._links.get(source)
        if worker is None:
            moves = holder is not None and holder.hello.role == "decode"
            return live.machine.handback(live.machine.epoch, source, "no_reader") if moves else []
        inc = worker.incarnation
        worker.charge(live.rid, 0)
        self._note_choice(live, (inc,), (source, inc))
        self._journal.decode_chosen(live, worker.worker_id)
        return live.machine.choose_decode(live.machine.epoch, inc)

    def note_failure(self, live: LiveRequest, key: Key) -> None:
        """An attempt failed there."""
        live.assignment.note_failure(key)
        self._failures.note_failure(key, self._clock.monotonic_s())

    def pool_tokens_per_s(self) -> float:
        """What the workers that take prompts now compute together; 0 if there are none."""
        placement = self.placement()
        return sum(map(tokens_per_s, placement.workers)) if placement else 0.0

    def any_idle(self) -> bool:
        """Whether a worker that takes prompts now has none waiting."""
        placement = self.placement()
        return placement is not None and any(worker.idle for worker in placement.workers)

    def num_uncached(self, live: LiveRequest) -> int:
        """Tokens that its next attempt has to compute where most of them are cached."""
        prompt = self._prompt(live)
        cached = max(prompt.holders.values(), default=0) * prompt.block_size
        return max(prompt.num_tokens - cached, 1)

    def _note_choice(self, live: LiveRequest, *keys: Key) -> None:
        now_s = self._clock.monotonic_s()
        live.timing.note_progress(now_s)
        for key in keys:
            self._failures.note_choice(key, now_s)

    def _prompt(self, live: LiveRequest) -> Prompt:
        preferred = live.assignment.prefer_incarnation
        holders = self._index.holders(live.block_hashes)
        if preferred is not None and preferred == live.request.prefer_incarnation:
            holders[preferred] = len(live.block_hashes)
        block_size, avoidance = self._identity.block_size, self._avoidance(live)
        num_tokens, alone = len(live.work.token_ids), live.work.alone
        return Prompt(num_tokens, block_size, holders, preferred, avoidance, alone, live.is_early)

    def _avoidance(self, live: LiveRequest) -> Avoidance:
        now_s, failed = self._clock.monotonic_s(), live.assignment.failed
        return Avoidance(
            failed | self._failures.closed_to(now_s),
            live.assignment.failed_again | self._failures.broken(now_s),
            frozenset(inc for key in failed for inc in key),
        )
