"""The door to the HTTP layer: requests come in, and what operators and probes ask is answered."""

import asyncio
from collections.abc import Callable
from math import inf
from typing import Any, Literal

from services.gateway.owner.generation import GenerateRequest, Generation
from services.gateway.owner.identity import GatewayIdentity
from services.gateway.owner.links.worker_links import WorkerLinks
from services.gateway.owner.live_request import LiveRequest
from services.gateway.owner.machine.effects import Failure
from services.gateway.owner.machine.request_machine import RequestMachine
from services.gateway.owner.placement.missing_workers import missing_workers
from services.gateway.owner.placement.return_times import ReturnTimes
from services.gateway.owner.placement.router import Route
from services.gateway.owner.records.journal import Journal
from services.gateway.owner.records.row import Row, RowFilter
from services.gateway.owner.requests import LINE_FULL, NO_BLOCKS, Requests
from services.gateway.owner.view.live_view import LiveView
from shared.clock import Clock
from shared.errors import OverloadedError
from shared.kv.block_hash import chain_hashes
from shared.protocol import FinishReason
from shared.settings.groups import LimitSettings

DRAIN_POLL_S = 0.05
MIN_RETRY_S = 1.0
MAX_RETRY_S = 60.0
SHUTTING_DOWN = "this gateway is shutting down"
FULL = "this gateway has as many requests as it may"

StoreState = Literal["ok", "refuses writes", "away"]
"""how Redis is"""


class Door:
    """All calls on the event loop."""

    def __init__(
        self,
        limits: LimitSettings,
        identity: GatewayIdentity,
        requests: Requests,
        links: WorkerLinks,
        journal: Journal,
        returns: ReturnTimes,
        clock: Clock,
    ) -> None:
        self._limits = limits
        self._identity = identity
        self._requests = requests
        self._links = links
        self._journal = journal
        self._returns = returns
        self._clock = clock
        self._start_s = clock.monotonic_s()
        self.view = LiveView(identity, requests, links, journal, clock, self)
        self._has_served = False
        """workers were there once that would have"""
        self._draining = False
        self._closed = False

    # Requests

    def submit(self, request: GenerateRequest) -> Generation:
        """Accept a request and send it on its way; OverloadedError if that is impossible now,
        RequestError if workers have died of it."""
        try:
            return self._accept(request)
        except OverloadedError as error:
            self._journal.refused(error.status)
            raise

    def _accept(self, request: GenerateRequest) -> Generation:
        returned = self._returns.claim(request)
        num_kept = 0 if returned or request.follows else self._num_kept_places()
        self._requests.convicts.check(request)
        self._check_capacity(request, returned=returned)
        live = self._open(request, returned=returned)
        if self._requests.lack_blocks(live):
            raise OverloadedError(NO_BLOCKS, retry_after_s=self._returns.hint())
        route = self._requests.route(live)
        if not request.follows:
            self._check_wait(live, route, num_kept, returned=returned)
        if route is not None and len(self._requests) + 1 < self._limits.max_live_requests:
            self._returns.start_over()
        self._requests.accept(live, route)
        return live.generation

    def _check_wait(
        self, live: LiveRequest, route: Route | None, num_kept: int, *, returned: bool
    ) -> None:
        """For its turn in the line or, with a route, on workers."""
        request, wait_s = live.request, 0.0
        if route is None:
            num_ahead = self._requests.num_ahead(request) + num_kept
            wait_s = self._requests.wait_s(num_ahead)
            is_late = 0 < self._limits.max_wait_s < wait_s and not returned
            if is_late or num_ahead >= self._limits.max_backlog * (1 + returned):
                raise self._overloaded(request, LINE_FULL)
        if request.timeout_s < inf:
            needed = self._requests.answer_time(live, route)
            if (refusal := needed.refusal(request.timeout_s, wait_s)) is not None:
                raise refusal

    async def finish(self, rid: str, reason: FinishReason, num_tokens: int) -> None:
        """End early from the text side; returns when the outcome is recorded or late."""
        if (live := self._requests.get(rid)) is not None:
            self._requests.execute(live, live.machine.stop(reason, num_tokens))
            await live.ended.wait()

    def cancel(self, rid: str, num_tokens: int) -> None:
        """The client left; workers are told at once."""
        if (live := self._requests.get(rid)) is not None:
            self._requests.execute(live, live.machine.cancel(num_tokens))

    async def close_record(self, rid: str) -> None:
        """No other choice of this HTTP request comes. Returns once its end is recorded, or late."""
        await self._requests.close_record(rid)

    async def drain(self, limit_s: float, may_come: Callable[[], bool] = lambda: False) -> None:
        """Until nothing lives and `may_come` says that nothing more is asked. What lives at the
        limit ends with one clean error, and nothing more is accepted."""
        self._draining = True
        deadline_s = self._clock.monotonic_s() + limit_s
        while self._has_work or may_come():
            if self._clock.monotonic_s() >= deadline_s:
                break
            await asyncio.sleep(DRAIN_POLL_S)
        self._closed = True
        self._requests.abandon_all(Failure("gateway_stopping", "the gateway is shutting down", 503))

    # How it fares

    def ready(self) -> bool:
        """Whether clients should come here. A Service whose gateways are all unready refuses
        connections; a gateway without workers answers 503 and says when to come again. So one that
        has served is unready only where another may do better. Redis does not count: without it a
        request is refused in words, and what runs goes on."""
        if self._refuses_all():
            return False
        return self.serves() or (self._has_served and not self.may_serve_elsewhere())

    def serves(self) -> bool:
        """Whether workers would serve a request now."""
        serves = not self._missing_workers()
        self._has_served |= serves
        return serves

    def may_serve_elsewhere(self) -> bool:
        """Whether another gateway may have workers that are missing here."""
        return self._links.may_serve_elsewhere(self._missing_workers())

    def trouble(self) -> str:
        """Why no request is served, and what fails between workers; nothing when all is well."""
        unserved = self._refuses_all() or "; ".join(self._missing_workers().values())
        return "; ".join(filter(None, (unserved, self._links.trouble(), self._requests.trouble())))

    def store_state(self) -> StoreState:
        """How Redis is, as far as this gateway knows."""
        if not self._links.registry_answers:
            return "away"
        return "refuses writes" if self._requests.store_refuses_writes else "ok"

    def other_pools(self) -> tuple[str, ...]:
        """Pools of the model that have workers and are not served here."""
        return self._links.other_pools

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
            "requests": {"live": len(self._requests)},
            "workers": self._links.status(),
            "hand_overs": self._journal.hand_overs.status(),
            "trouble": self.trouble(),
            "redis": self.store_state(),
        }

    def receipt(self, rid: str) -> dict[str, Any] | None:
        """What happened to a request; None if it is not among the last 1,000."""
        if (live := self._requests.get(rid)) is not None:
            self._journal.so_far(live)
        return self._journal.receipt(rid)

    def live(self) -> dict[str, Any]:
        """The body of `/v1/baton/live`."""
        return self.view.body()

    @property
    def draining(self) -> bool:
        """The gateway stops: whoever can should go elsewhere."""
        return self._draining

    def last_requests(self, wanted: RowFilter) -> list[Row]:
        """Those of the last 1,000 that are asked for, the newest first."""
        for live in self._requests.all():
            self._journal.so_far(live)
        return wanted.choose(self._journal.rows())

    async def final_receipt(self, rid: str) -> dict[str, Any] | None:
        """The receipt of a request that has ended, after a short wait for the workers' last
        words on it."""
        return await self._journal.final_receipt(rid)

    # Inside

    def _open(self, request: GenerateRequest, *, returned: bool) -> LiveRequest:
        hashing, block_size = self._identity.hashing, self._identity.block_size
        root = hashing.root(request.tenant)
        hashes = request.block_hashes
        if hashes is None or block_size != hashing.block_size:
            hashes = tuple(chain_hashes(root, request.prompt_ids, block_size))
        live = LiveRequest(
            request=request,
            machine=RequestMachine(request.sampling, self._limits.max_attempts),
            generation=Generation(request.rid, self),
            accepted=(self._clock.monotonic_s(), self._clock.wall_ns()),
            hashes=(root, hashes),
            block_size=block_size,
            returned=returned,
        )
        live.meet_pressure(self._identity.on_kv_pressure)
        return live

    @property
    def _has_work(self) -> bool:
        """Something lives, or belongs to what was accepted and is still to be submitted."""
        return len(self._requests) > 0 or self._requests.choices_to_come

    def _refuses_all(self) -> str:
        """Whatever the workers do."""
        if self._draining:
            return SHUTTING_DOWN
        return FULL if len(self._requests) >= self._limits.max_live_requests else ""

    def _missing_workers(self) -> dict[str, str]:
        links, topology = self._links, self._identity.topology
        return missing_workers(links.views, topology, links.prefill_seen(topology))

    def _check_capacity(self, request: GenerateRequest, *, returned: bool) -> None:
        """A follow-up choice may wait for a worker even when the line is full, and comes after the
        end of a drain too, like the choice before it. At the cap no place is kept: a client that
        never comes would take it from one that is there. A client that was told to come goes
        beyond it."""
        max_live = self._limits.max_live_requests + returned * self._max_kept_places()
        if self._closed and not request.follows:
            raise OverloadedError(SHUTTING_DOWN, retry_after_s=MIN_RETRY_S, status=503)
        if len(self._requests) >= max_live:
            raise self._overloaded(request, FULL)
        if not request.follows and not self.serves():
            away_s = self._clock.monotonic_s() - (self._links.lost_at_s or self._start_s)
            raise OverloadedError(
                "no worker can serve this now",
                retry_after_s=min(max(away_s, MIN_RETRY_S), MAX_RETRY_S),
                status=503,
            )

    def _num_kept_places(self) -> int:
        """Places in the line kept for clients that were told to come now."""
        return min(self._returns.num_due(), self._max_kept_places())

    def _max_kept_places(self) -> int:
        """At most every second one, for they may not come."""
        return self._limits.max_backlog // 2

    def _overloaded(self, request: GenerateRequest, message: str) -> OverloadedError:
        return OverloadedError(message, retry_after_s=self._returns.promise(request))
