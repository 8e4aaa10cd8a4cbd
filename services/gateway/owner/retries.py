"""When the next attempt of a request starts after one that failed: after a short pause, and
within the budget.

Until then the request waits in the line like any other, so it can be cancelled and runs into its
deadline there. Nothing fails for lack of budget: the limit to the next token starts anew after it.
"""

import asyncio
import random
from typing import Protocol

from services.gateway.owner.counters import DispatchCounters
from services.gateway.owner.live_request import LiveRequest
from services.gateway.owner.retry_budget import RetryBudget
from services.gateway.owner.retry_delay import retry_delay_s
from services.gateway.owner.waiting_line import WaitingLine
from shared.clock import Clock

HELD_FOR_BUDGET = "retry_budget"


class Placer(Protocol):
    """Who knows the workers."""

    def num_uncached(self, live: LiveRequest) -> int:
        """Tokens that its next attempt has to compute."""

    def pool_tokens_per_s(self) -> float:
        """What the pool computes now."""

    def any_idle(self) -> bool:
        """A worker has nothing waiting."""

    def place_again(self, live: LiveRequest) -> None:
        """It may go to a worker, or into the line."""


class Retries:
    """Called on the event loop; `start_held` now and then."""

    def __init__(
        self,
        line: WaitingLine,
        counters: DispatchCounters,
        clock: Clock,
        rng: random.Random,
        placer: Placer,
    ) -> None:
        self.budget = RetryBudget(clock.monotonic_s())
        self._line = line
        self._counters = counters
        self._clock = clock
        self._rng = rng
        self._placer = placer
        self._held: dict[str, LiveRequest] = {}
        """over the budget, by rid"""

    def start(self, live: LiveRequest, num_failures: int) -> None:
        """Place it now, or later."""
        self._line.hold(live)
        delay_s = retry_delay_s(num_failures, self._rng)
        if delay_s:
            loop = asyncio.get_running_loop()
            loop.call_later(delay_s, self._end_pause, live, live.machine.epoch)
        else:
            self._start(live)

    def holds(self, rid: str) -> bool:
        """It waits for the budget."""
        return rid in self._held

    def start_held(self) -> None:
        """Those over the budget, the longest waiting first, as far as it has filled again."""
        for rid, live in list(self._held.items()):
            if live.machine.waits and not self._may_start(live):
                return
            del self._held[rid]
            live.last_token_s = self._clock.monotonic_s()
            self._go(live)

    def _end_pause(self, live: LiveRequest, epoch: int) -> None:
        if live.machine.waits and live.machine.epoch == epoch:
            self._start(live)

    def _start(self, live: LiveRequest) -> None:
        if not self._held and self._may_start(live):
            self._go(live)
            return
        self._held[live.rid] = live
        self._counters.retries_held += 1
        live.receipt.waited = HELD_FOR_BUDGET

    def _may_start(self, live: LiveRequest) -> bool:
        """A worker with nothing to do takes one for nothing: it costs nobody anything."""
        if self._placer.any_idle():
            return True
        now_s = self._clock.monotonic_s()
        self.budget.note_pool(self._placer.pool_tokens_per_s(), now_s)
        return self.budget.take(self._placer.num_uncached(live), now_s)

    def _go(self, live: LiveRequest) -> None:
        if live.machine.waits:
            self._line.leave(live.rid)
            self._placer.place_again(live)
