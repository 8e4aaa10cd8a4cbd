"""Tasks that outlive the call that started them, owned by somebody who ends them."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

logger = logging.getLogger(__name__)


class Background:
    """A set of running tasks. One that fails is logged with its traceback, never lost."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def drain(self, grace_s: float) -> None:
        """Wait until no task is left, at most this long."""
        try:
            async with asyncio.timeout(grace_s):
                while self._tasks:
                    await asyncio.wait(self._tasks)
        except TimeoutError:
            logger.warning("%d tasks did not end in time", len(self._tasks))

    async def close(self) -> None:
        """Cancel what runs and wait until it has ended."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("background task failed", exc_info=error)
