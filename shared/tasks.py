"""Tasks that run once and outlive the call that started them, owned by somebody who ends them.

What runs as long as its process is a turn of `shared.loops`.
"""

import asyncio
import logging
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

from shared.errors import PeerLostError

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


class Tasks:
    """A set of running tasks. One that fails is logged with its traceback, never lost."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, Result]) -> "asyncio.Task[Result]":
        """A task that nobody needs to await."""
        task = self._own(work)
        task.add_done_callback(_log_failure)
        return task

    async def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """The result of `work` in an owned task. Cancelling the caller cancels the task and
        returns only once it has ended; PeerLostError when `close` ended it."""
        if self._closed:
            work.close()
            raise PeerLostError("closed on this side")
        task = self._own(work)
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            task.cancel()
            await settled([task])
            raise
        if task.cancelled():
            raise PeerLostError("closing on this side")
        return task.result()

    async def drain(self, grace_s: float) -> None:
        """Wait until no task is left, at most this long."""
        try:
            async with asyncio.timeout(grace_s):
                while self._tasks:
                    await asyncio.wait(self._tasks)
        except TimeoutError:
            logger.warning("%d tasks did not end in time", len(self._tasks))

    async def close(self) -> None:
        """Cancel what runs and wait until it has ended; `run` takes nothing more."""
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await settled(tasks)

    def _own(self, work: Coroutine[Any, Any, Result]) -> "asyncio.Task[Result]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


async def settled(futures: Iterable["asyncio.Future[Any]"]) -> None:
    """Returns once all are done, whatever their outcome, which counts as seen. A cancellation of
    the caller meanwhile is raised afterwards, not instead."""
    futures = list(futures)
    pending = {future for future in futures if not future.done()}
    cancelled = False
    while pending:
        try:
            _, pending = await asyncio.wait(pending)
        except asyncio.CancelledError:
            cancelled = True
            pending = {future for future in pending if not future.done()}
    for future in futures:
        if not future.cancelled():
            future.exception()
    if cancelled:
        raise asyncio.CancelledError


def _log_failure(task: "asyncio.Task[Any]") -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("a background task failed", exc_info=error)
