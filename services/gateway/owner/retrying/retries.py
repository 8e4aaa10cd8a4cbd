"""When the next attempt of a request starts after one that failed: after a short pause, and
within the budget; one that engines have died under when its role has a worker to spare.

Until then the request waits in the line like any other, so it can be cancelled and runs into its
deadline there. Nothing fails for lack of budget: the limit to the next token starts again after it.
"""

import asyncio
import random
from contextlib import AbstractContextManager
from typing import Protocol

from services.gateway.owner.live_request import LiveRequest
from services.gateway.owner.placement.placer import Placer
from services.gateway.owner.records.journal import Journal
from services.gateway.owner.retrying.retry_budget import RetryBudget
from services.gateway.owner.retrying.retry_delay import retry_delay_s
from services.gateway.owner.waiting_line import WaitingLine
from shared.clock import Clock


class Owner(Protocol):
    """Owns the requests that are retried."""

    def place_again(self, live: LiveRequest) -> None:
        """It may go to a worker, or into the line."""

    def isolated(self, live: LiveRequest) -> AbstractContextManager[None]:
        """What is raised within ends this request and no other."""


class Retries:
    """Called on the event loop; `start_held` now and then."""

    def __init__(
        self, owner: Owner, line: WaitingLine, placer: Placer, journal: Journal, clock: Clock
    ) -> None:
        self._owner = owner
        self._line = line
        self._placer = placer
        self._journal = journal
        self._clock = clock
        self._budget = RetryBudget(clock.monotonic_s())
        self._rng = random.Random()  # noqa: S311 -- spreads load, hides nothing
        self._held: dict[str, LiveRequest] = {}
        """over the budget, by rid"""
        self._suspects: dict[str, tuple[LiveRequest, bool]] = {}
        """that engines have died under, and no worker to spare or without room; and whether it may
        start apart from that"""

    def note_admitted(self, live: LiveRequest) -> None:
        """Work that was accepted pays for work that is repeated."""
        self._budget.note_admitted(len(live.work.token_ids), self._clock.monotonic_s())

    def start(self, live: LiveRequest, num_failures: int) -> None:
        """Place it now, or later."""
        self._line.hold(live)
        delay_s = retry_delay_s(num_failures, self._rng)
        if delay_s:
            loop = asyncio.get_running_loop()
            loop.call_later(delay_s, self._end_pause, live, live.machine.epoch)
        else:
            self._start(live)

    def wait_for_room(self, live: LiveRequest) -> None:
        """Engines have died under it, and it may start."""
        self._line.hold(live)
        self._suspects[live.rid] = live, True

    def start_held(self) -> None:
        """Those over the budget, the longest waiting first, as far as it has filled again; before
        them those that waited for a worker to spare."""
        for rid, (live, may_start) in list(self._suspects.items()):
            with self._owner.isolated(live):
                if live.machine.waits and not self._placer.spares_a_worker(live):
                    continue
                del self._suspects[rid]
                if may_start:
                    self._go(live)
                elif live.machine.waits:
                    self._start(live)
        for rid, live in list(self._held.items()):
            with self._owner.isolated(live):
                if live.machine.waits and not self._may_start(live):
                    return
                del self._held[rid]
                live.timing.restart_token_limit(self._clock.monotonic_s())
                self._go(live)

    def _end_pause(self, live: LiveRequest, epoch: int) -> None:
        if live.machine.waits and live.machine.epoch == epoch:
            self._start(live)

    def _start(self, live: LiveRequest) -> None:
        if not self._placer.spares_a_worker(live):
            self._suspects[live.rid] = live, False
            return
        if not self._held and self._may_start(live):
            self._go(live)
            return
        self._held[live.rid] = live
        live.timing.suspend_token_limit()
        self._journal.held(live)

    def _may_start(self, live: LiveRequest) -> bool:
        """A worker with nothing to do takes one for nothing: it costs nobody anything."""
        if self._placer.any_idle():
            return True
        now_s = self._clock.monotonic_s()
        self._budget.note_pool(self._placer.pool_tokens_per_s(), now_s)
        return self._budget.take(self._placer.num_uncached(live), now_s)

    def _go(self, live: LiveRequest) -> None:
        if live.machine.waits:
            self._line.leave(live.rid)
            self._owner.place_again(live)
