"""Time limits of requests: deadlines, stalls, and waiting although there is room."""

import asyncio

from services.gateway.owner.links.worker_links import WorkerLinks
from services.gateway.owner.live_request import LiveRequest
from services.gateway.owner.machine.effects import Effect, Failure
from services.gateway.owner.requests import Requests
from shared.clock import Clock

TICK_S = 0.25
PLACE_OURSELVES_S = 1.0
"""a request that still waits after this is placed without the backlog as soon as there is room"""
POOL_GONE_S = 30.0
"""a worker may restart within; then the gateway turns to another pool of the model, and what cannot
go on there ends"""
POOL_GONE_TEXT = "the model's workers were replaced by others with another KV layout or revision"
POOL_GONE_RETRY_S = 1.0


class RequestClock:
    """`turn` runs as a background loop."""

    def __init__(
        self,
        first_token_timeout_s: float,
        requests: Requests,
        links: WorkerLinks,
        clock: Clock,
    ) -> None:
        """`first_token_timeout_s`: for each next token, too."""
        self._token_timeout_s = first_token_timeout_s
        self._requests = requests
        self._links = links
        self._clock = clock
        self._stalled: frozenset[str] = frozenset()
        """incarnations whose engines stand still"""

    async def turn(self) -> None:
        loop = asyncio.get_running_loop()
        due_s = loop.time() + TICK_S
        await asyncio.sleep(TICK_S)
        self.tick(own_pause_s=loop.time() - due_s)

    def tick(self, own_pause_s: float = 0.0) -> None:
        """While this process was paused it heard nobody: that silence is no worker's fault."""
        now_s = self._clock.monotonic_s()
        if self._pool_is_gone(now_s):
            failure = Failure("pool_replaced", POOL_GONE_TEXT, 503, POOL_GONE_RETRY_S)
            self._requests.abandon_all(failure)
        self._requests.for_each(lambda live: self._end_if_late(live, now_s, own_pause_s))
        self._look_for_stalls()
        self._requests.place_due(PLACE_OURSELVES_S)

    def _look_for_stalls(self) -> None:
        """What waits for a worker whose engine stands still begins at another, if there is one. A
        worker that goes on has not died."""
        views = self._links.views
        stalled = {view.incarnation: view.role for view in views if view.stalled}
        for inc, role in stalled.items():
            if any(view.ready and view.role == role for view in views):
                self._leave(inc)
        for inc in self._stalled - stalled.keys():
            if self._links.get(inc) is not None:
                self._excuse(inc)
        self._stalled = frozenset(stalled)

    def _leave(self, incarnation: str) -> None:
        self._requests.for_each(lambda live: live.machine.stall(live.machine.epoch, incarnation))

    def _excuse(self, incarnation: str) -> None:
        for live in self._requests.all():
            live.machine.excuse(incarnation)

    def _pool_is_gone(self, now_s: float) -> bool:
        """Other workers have taken the place of those that requests here began on."""
        links = self._links
        if links.lost_at_s is None or links.views or not links.other_pools:
            return False
        return now_s - links.lost_at_s >= POOL_GONE_S

    def _end_if_late(self, live: LiveRequest, now_s: float, own_pause_s: float) -> list[Effect]:
        """The request, or this attempt of it."""
        timing = live.timing
        timing.note_pause(own_pause_s)
        if live.machine.wants_decode:
            timing.note_progress(now_s)
        overdue = timing.overdue(now_s, self._token_timeout_s)
        if overdue is not None:
            return live.machine.abandon(overdue)
        if timing.stalled(now_s, live.assignment.estimate_s):
            return live.machine.stall(live.machine.epoch)
        return []
