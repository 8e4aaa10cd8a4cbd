"""Owned tasks: what they raise is never lost and never complained about twice."""

import asyncio
import gc

import pytest

from shared.transfer.tasks import OwnedTasks

pytestmark = pytest.mark.anyio


async def test_a_failure_that_meets_a_cancellation_is_not_reported_as_forgotten() -> None:
    """A pull that its caller cancels may fail at that very moment: the cancellation stands."""
    forgotten: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: forgotten.append(context))
    tasks, begun = OwnedTasks(), asyncio.Event()

    async def fails_when_cancelled() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            raise OSError

    caller = asyncio.create_task(tasks.run(fails_when_cancelled()))
    await begun.wait()
    caller.cancel()
    await asyncio.wait({caller})
    assert caller.cancelled()
    del caller
    gc.collect()
    assert forgotten == []
    assert len(tasks) == 0
