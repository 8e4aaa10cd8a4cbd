"""How long the event loop, which client and gateway of these tests share, did not turn."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

TICK_S = 0.002


class LoopLag:
    """The longest time the event loop did not turn."""

    def __init__(self) -> None:
        self.longest_s = 0.0

    @contextlib.asynccontextmanager
    async def measured(self) -> AsyncIterator[None]:
        ticking = asyncio.ensure_future(self._tick())
        await asyncio.sleep(0)
        try:
            yield
        finally:
            ticking.cancel()
            await asyncio.gather(ticking, return_exceptions=True)

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            before_s = loop.time()
            try:
                await asyncio.sleep(TICK_S)
            finally:
                self.longest_s = max(self.longest_s, loop.time() - before_s - TICK_S)
