"""Owns every request of this gateway from acceptance to its one end.

    submit: check -> route -> ASSIGN on the link, ADMIT to Redis at the same moment
    START -> choose decode -> RECEIVE        tokens -> in order to the client
    link lost, failure, stall -> next epoch  last token -> FINISH -> last delta

What may happen to a request is decided by its state machine (`ownership`), where it goes by
the router; `owned_requests` does what they say. Here are the door to the HTTP layer and the
clock. Everything runs on one event loop, and no token ever waits for Redis.
"""

import asyncio
import math
from dataclasses import dataclass
from typing import Any

from services.gateway.owner.counters import DispatchCounters
from services.gateway.owner.effects import Failure
from services.gateway.owner.generation import GenerateRequest, Generation
from services.gateway.owner.identity import GatewayIdentity
from services.gateway.owner.live_request import LiveRequest
from services.gateway.owner.observer import Observer
from services.gateway.owner.owned_requests import OwnedRequests, StoreState
from services.gateway.owner.ownership import Ownership
from services.gateway.owner.prefill_cost import PrefillCost
from services.gateway.owner.router import missing_workers
from services.gateway.owner.worker_link import WorkerLink
from services.gateway.owner.worker_links import WorkerLinks
from services.gateway.owner.worker_messages import WorkerMessages
from shared.block_hash import chain_hashes, root_hash
from shared.clock import Clock
from shared.errors import OverloadedError
from shared.loops import Loops
from shared.protocol import FinishReason, Message
from shared.queue.backlog import Backlog
from shared.settings import Settings
from shared.state.prefix_index import PrefixIndex
from shared.state.records import AdmittedRequest, RequestRecords
from shared.telemetry.metrics import GatewayFacts

TICK_S = 0.25
PLACE_OURSELVES_S = 1.0
"""who still waits after this is placed without the backlog as soon as there is room"""
DRAIN_POLL_S = 0.05
RECEIPT_WAIT_S = 0.05
POOL_GONE_S = 30.0
"""a worker may restart within; then the gateway turns to another pool of the model, and what cannot
go on there ends"""
POOL_GONE_TEXT = "the model's workers were replaced by others with another KV layout or revision"
MIN_RETRY_S = 1.0
MAX_RETRY_S = 60.0
SHUTTING_DOWN = "this gateway is shutting down"
FULL = "this gateway has as many requests as it may"


@dataclass(frozen=True)
class GatewayStores:
    """What the gateway keeps or reads outside its own memory."""

    records: RequestRecords
    backlog: Backlog
    index: PrefixIndex


class Dispatcher:
    """The gateway's core. `start` once, `close` once; all calls on one event loop."""

    def __init__(
        self,
        settings: Settings,
        identity: GatewayIdentity,
        stores: GatewayStores,
        links: WorkerLinks,
        cost: PrefillCost,
        clock: Clock,
        observer: Observer,
    ) -> None:
        self._settings = settings
        self._identity = identity
        self._links = links
        self._clock = clock
        self._start_s = clock.monotonic_s()
        self._draining = False
        self._requests = OwnedRequests(
            identity, links, stores.records, stores.backlog, stores.index, clock, observer
        )
        self._messages = WorkerMessages(self._requests, cost, clock, observer, identity.vocab_size)
        self.loops = Loops(clock)

    def start(self) -> None:
        """Dial workers and begin to watch the clock."""
        self._links.start(self)
        self.loops.start("requests", self._watch)
        self._requests.writer.start(self.loops)

    async def drain(self, limit_s: float) -> None:
        """Accept nothing more; what lives has until the limit, then ends with one clean error."""
        self._draining = True
        deadline_s = self._clock.monotonic_s() + limit_s
        while self._requests.live and self._clock.monotonic_s() < deadline_s:  # noqa: ASYNC110
            await asyncio.sleep(DRAIN_POLL_S)
        self._abandon_all(Failure("gateway_stopping", "the gateway is shutting down", 503))

    async def close(self) -> None:
        """End what still lives, record it, hang up."""
        await self.drain(0.0)
        await self._requests.writer.close()
        await self.loops.close()
        await self._requests.line.close()
        await self._links.close()

    # The HTTP layer's side

    def submit(self, request: GenerateRequest) -> Generation:
        """Accept a request and send it on its way; OverloadedError if that is impossible now."""
        requests = self._requests
        placement = requests.placement()
        returned = requests.returns(request)
        num_kept = 0 if returned or request.follows else self._num_kept_places()
        self._check_capacity(request, num_kept)
        live = self._open(request)
        live.returned = returned
        route = requests.route(live, placement)
        limit = self._settings.max_backlog * (1 + returned)
        if route is None and len(requests.line) + num_kept >= limit and not request.follows:
            raise self._overloaded(request, "no worker has room and the backlog is full")
        if route is not None:
            requests.promises.clear()
        requests.accept(live, route, placement)
        return live.generation

    async def finish(self, rid: str, reason: FinishReason, num_tokens: int) -> None:
        """End early from the text side; returns when the outcome is recorded or late."""
        live = self._requests.live.get(rid)
        if live is not None:
            self._requests.execute(live, live.machine.stop(reason, num_tokens))
            await live.ended.wait()

    async def cancel(self, rid: str, num_tokens: int) -> None:
        """The client left; workers are told at once."""
        live = self._requests.live.get(rid)
        if live is not None:
            self._requests.execute(live, live.machine.cancel(num_tokens))

    def ready(self) -> bool:
        """Whether workers would serve a request now. Redis does not count: without it a request
        is refused in words, and what runs goes on."""
        return not self._unready()

    def trouble(self) -> str:
        """Why no request would be served now, and which registered workers are not linked;
        nothing when all is well."""
        return "; ".join(filter(None, (self._unready(), self._links.trouble())))

    def store_state(self) -> StoreState:
        """How Redis is, as far as this gateway knows."""
        if not self._links.registry_answers:
            return "away"
        return "refuses writes" if self._requests.store == "refuses writes" else "ok"

    def status(self) -> dict[str, Any]:
        """The body of `status --json`. Asks the workers how they are, for whoever asks next."""
        identity = self._identity
        self._links.ping_all()
        return {
            "version": identity.version,
            "url": identity.url,
            "admin_url": identity.admin_url,
            "model": identity.model,
            "max_model_len": self._links.max_model_len() or identity.max_model_len,
            "block_size": identity.block_size,
            "requests": {"live": len(self._requests.live)},
            "workers": self._links.status(),
            "trouble": self.trouble(),
        }

    def receipt(self, rid: str) -> dict[str, Any] | None:
        """What happened to a request; None if it is not among the last 1,000."""
        return self._requests.receipts.body(rid)

    async def final_receipt(self, rid: str) -> dict[str, Any] | None:
        """The receipt of a request that has ended, after a short wait for the workers' last
        words on it."""
        await self._requests.receipts.wait_complete(rid, RECEIPT_WAIT_S)
        return self.receipt(rid)

    @property
    def counters(self) -> DispatchCounters:
        return self._requests.counters

    def worker_counters(self) -> dict[str, int]:
        """Totals over all workers this gateway has seen, by metric name."""
        return self._links.counter_totals()

    def facts(self) -> GatewayFacts:
        """What `/metrics` tells of the requests and their dispatch."""
        counters = self._requests.counters
        num_waiting = sum(live.machine.waits for live in self._all_live())
        return GatewayFacts(
            num_running=len(self._requests.live) - num_waiting,
            num_waiting=num_waiting,
            direct_assigns=counters.direct_assigns,
            backlog_puts=counters.backlog_puts,
            backlog_pulls=counters.backlog_pulls,
            retries_held=counters.retries_held,
            attempts=counters.attempts,
            admissions_refused=counters.admissions_refused,
            worker_totals=self.worker_counters(),
            records_dropped=self._requests.writer.num_dropped,
        )

    # The upkeep's side

    def progress(self) -> dict[str, int]:
        """Output tokens so far, by rid."""
        return {live.rid: len(live.machine.token_ids) for live in self._all_live()}

    def admit_all_again(self) -> None:
        """Redis lost its data: write what lives once more."""
        self._requests.writer.admit_again([live.record for live in self._all_live()])

    # The links' side

    def live_attempts(self, inc: str) -> tuple[tuple[str, int], ...]:
        held = (live for live in self._all_live() if live.machine.holds(inc))
        return tuple((live.rid, live.machine.epoch) for live in held)

    def may_change_pool(self) -> bool:
        return not self._requests.live

    def other_pools(self) -> tuple[str, ...]:
        """Pools of the model that have workers and are not served here."""
        return self._identity.served.others

    def receive(self, worker: WorkerLink, message: Message) -> None:
        self._messages.receive(worker, message)

    def worker_up(self, worker: WorkerLink) -> None:
        for live in self._all_live():
            live.machine.regain_link(worker.inc)
        self._requests.choose_missing_decodes()
        self._requests.place_waiting()

    def worker_lost(self, worker: WorkerLink) -> None:
        for live in self._all_live():
            effects = live.machine.lose_link(worker.inc, excused=worker.drains)
            self._requests.execute(live, effects)

    def num_backlogged(self, worker: WorkerLink) -> int:
        return self._requests.num_backlogged(worker)

    # Inside

    def _all_live(self) -> list[LiveRequest]:
        return list(self._requests.live.values())

    def _open(self, request: GenerateRequest) -> LiveRequest:
        identity = self._identity
        root = root_hash(self._settings.block_hash_secret, request.tenant)
        hashes = request.block_hashes
        if hashes is None or identity.block_size != self._settings.block_size:
            hashes = tuple(chain_hashes(root, request.prompt_ids, identity.block_size))
        return LiveRequest(
            request=request,
            record=AdmittedRequest(
                rid=request.rid,
                g_inc=identity.g_inc,
                tenant=request.tenant,
                pool=identity.pool_id,
                num_prompt_tokens=len(request.prompt_ids),
                received_ns=request.received_ns,
            ),
            machine=Ownership(request.sampling, self._settings.max_attempts),
            generation=Generation(request.rid, self),
            accepted=(self._clock.monotonic_s(), self._clock.wall_ns()),
            hashes=(root, hashes),
        )

    def _unready(self) -> str:
        if self._draining:
            return SHUTTING_DOWN
        if len(self._requests.live) >= self._settings.max_live_requests:
            return FULL
        return self._missing_workers()

    def _missing_workers(self) -> str:
        links = self._links
        return missing_workers(links.views, self._identity.topology, links.prefill_seen)

    def _check_capacity(self, request: GenerateRequest, num_kept: int) -> None:
        """A choice that follows may wait for a worker, also in a full line, and finish while we
        drain, as the choice before it does."""
        num_live = len(self._requests.live)
        if self._draining and not request.follows:
            raise OverloadedError(SHUTTING_DOWN, retry_after_s=MIN_RETRY_S, status=503)
        if num_live + num_kept >= self._settings.max_live_requests:
            raise self._overloaded(request, FULL)
        if not request.follows and self._missing_workers():
            away_s = self._clock.monotonic_s() - (self._links.lost_at_s or self._start_s)
            raise OverloadedError(
                "no worker can serve this now",
                retry_after_s=min(max(away_s, MIN_RETRY_S), MAX_RETRY_S),
                status=503,
            )

    def _pool_is_gone(self, now_s: float) -> bool:
        """Other workers have taken the place of those that requests here began on."""
        lost_at_s = self._links.lost_at_s
        if lost_at_s is None or self._links.views or not self.other_pools():
            return False
        return now_s - lost_at_s >= POOL_GONE_S

    def _abandon_all(self, failure: Failure) -> None:
        for live in self._all_live():
            self._requests.execute(live, live.machine.abandon(failure))

    def _token_timeout_s(self, live: LiveRequest) -> float:
        held = self._requests.retries.holds(live.rid)
        return math.inf if held else self._settings.first_token_timeout_s

    def _num_kept_places(self) -> int:
        """Places in the line kept for clients that were told to come now: at most every second,
        for they may not come."""
        num_due = self._requests.promises.num_kept(self._clock.monotonic_s())
        return min(num_due, self._settings.max_backlog // 2)

    def _overloaded(self, request: GenerateRequest, message: str) -> OverloadedError:
        return OverloadedError(message, retry_after_s=self._requests.promise_return(request))

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        due_s = loop.time() + TICK_S
        await asyncio.sleep(TICK_S)
        self.tick(own_pause_s=loop.time() - due_s)

    def tick(self, own_pause_s: float = 0.0) -> None:
        """Deadlines, stalls, and whoever waits although there is room.

        While this process was paused it heard nobody: that silence is no worker's fault."""
        now_s = self._clock.monotonic_s()
        if self._pool_is_gone(now_s):
            self._abandon_all(Failure("pool_replaced", POOL_GONE_TEXT, 503, MIN_RETRY_S))
        for live in self._all_live():
            live.note_pause(own_pause_s)
            if live.machine.wants_decode:
                live.progress_s = now_s
            overdue = live.overdue(now_s, self._token_timeout_s(live))
            if overdue is not None:
                self._requests.execute(live, live.machine.abandon(overdue))
            elif now_s - live.progress_s > live.patience_s():
                self._requests.execute(live, live.machine.stall(live.machine.epoch))
        self._requests.choose_missing_decodes()
        self._requests.retries.start_held()
        self._requests.place_popped()
        self._requests.place_waiting(PLACE_OURSELVES_S)
        self._requests.line.repeat_puts()
