"""Loops that run as long as their process, whatever happens in one turn.

A turn that raises is counted and logged (the 1st, 2nd, 4th ... of a kind), and the loop goes on
after a pause that grows. Redis or a peer that is away is waited for and no fault of the loop; one
that fails for FAILING_LIMIT_S for any other reason, or has ended, is `trouble`: its process no
longer does all that it should, and `/health` says so.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from shared.clock import Clock, SystemClock
from shared.errors import PeerLostError, StateUnavailableError
from shared.repeats import Repeats

logger = logging.getLogger(__name__)

Turn = Callable[[], Awaitable[None]]

FAILING_LIMIT_S = 30.0
FIRST_PAUSE_S = 0.01
LONGEST_PAUSE_S = 5.0
"""between two turns that fail"""
LONGEST_AWAY_PAUSE_S = 0.5
"""the same while Redis or a peer is away: it is used again soon after it is back"""
AWAY = (StateUnavailableError, PeerLostError)


class _Loop:
    """One loop and how it fares."""

    def __init__(self, name: str, turn: Turn, pause_s: float, clock: Clock) -> None:
        self.name = name
        self.num_failures = 0
        self.task = asyncio.create_task(self._run(), name=name)
        self._turn = turn
        self._pause_s = pause_s
        self._clock = clock
        self._repeats = Repeats(clock.monotonic_s)
        self._error: BaseException | None = None
        """of the last turn"""
        self._num_in_a_row = 0
        self._failing_since_s: float | None = None
        """no turn has succeeded since, and one of them found nobody away"""

    def trouble(self) -> str:
        """What is wrong with it, or nothing."""
        if self.task.done():
            return f"{self.name} has ended"
        if self._failing_since_s is None or isinstance(self._error, AWAY):
            return ""
        failing_s = self._clock.monotonic_s() - self._failing_since_s
        if failing_s < FAILING_LIMIT_S or self._num_in_a_row < 2:
            return ""
        return f"{self.name} fails for {failing_s:.0f} s ({type(self._error).__name__})"

    async def _run(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        while not task.cancelling():
            try:
                await self._turn()
            except asyncio.CancelledError as error:
                if task.cancelling():
                    raise
                self._fail(error)  # something inside was cancelled, not this loop
            except Exception as error:  # noqa: BLE001 -- whatever it is, the loop goes on
                self._fail(error)
            else:
                self._error, self._num_in_a_row, self._failing_since_s = None, 0, None
            await asyncio.sleep(self._next_pause_s())

    def _fail(self, error: BaseException) -> None:
        away = isinstance(error, AWAY)
        self._error = error
        self.num_failures += 1
        self._num_in_a_row += 1
        if self._failing_since_s is None and not away:
            self._failing_since_s = self._clock.monotonic_s()
        count = self._repeats.due(type(error).__name__)
        if count and away:
            tried = f", tried {count} times" if count > 1 else ""
            logger.warning("%s waits: %s%s", self.name, error, tried)
        elif count:
            logger.error("%s failed, time %d; it goes on", self.name, count, exc_info=error)

    def _next_pause_s(self) -> float:
        if self._error is None:
            return self._pause_s
        longest_s = LONGEST_AWAY_PAUSE_S if isinstance(self._error, AWAY) else LONGEST_PAUSE_S
        grown_s: float = max(self._pause_s, FIRST_PAUSE_S) * 2 ** min(self._num_in_a_row, 16)
        return max(self._pause_s, min(grown_s, longest_s))


class Loops:
    """The loops of one owner: `start` each once, `close` all."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._loops: list[_Loop] = []

    def start(self, name: str, turn: Turn, pause_s: float = 0.0) -> None:
        """Run `turn` again and again, with at least this pause between two."""
        self._loops.append(_Loop(name, turn, pause_s, self._clock))

    def trouble(self) -> str:
        """What is wrong with which loops; empty when all is well."""
        return "; ".join(filter(None, (loop.trouble() for loop in self._loops)))

    def failures(self) -> dict[str, int]:
        """Failed turns so far, by the loop's name."""
        return {loop.name: loop.num_failures for loop in self._loops}

    async def stop(self, name: str) -> None:
        """Cancel one and wait until it has ended; none of that name is fine."""
        await self._end([loop for loop in self._loops if loop.name == name])

    async def close(self) -> None:
        """Cancel all and wait until they have ended."""
        await self._end(list(self._loops))

    async def _end(self, loops: list[_Loop]) -> None:
        for loop in loops:
            self._loops.remove(loop)
            loop.task.cancel()
        await asyncio.gather(*(loop.task for loop in loops), return_exceptions=True)
