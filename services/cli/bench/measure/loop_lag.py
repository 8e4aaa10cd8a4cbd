"""How late the client itself is: a timer that should fire every few milliseconds.

What arrives while the loop is busy gets a late time, so a slow client looks like a slow server.
"""

import asyncio
import time

TICK_S = 0.01


class LoopLag:
    """Runs between `start` and `stop`; `late_s` has one value per tick."""

    def __init__(self) -> None:
        self.late_s: list[float] = []
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._cpu_s = self._wall_s = self._due_s = 0.0

    def start(self) -> None:
        self._cpu_s, self._wall_s = time.process_time(), time.monotonic()
        self._arm()

    def stop(self) -> float:
        """Returns the share of one core that this process used."""
        if self._timer is not None:
            self._timer.cancel()
        wall_s = time.monotonic() - self._wall_s
        return (time.process_time() - self._cpu_s) / wall_s if wall_s else 0.0

    def _arm(self) -> None:
        self._due_s = time.monotonic() + TICK_S
        self._timer = self._loop.call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        self.late_s.append(max(time.monotonic() - self._due_s, 0.0))
        self._arm()
