"""Owned tasks: what they raise is never lost and never complained about twice."""

import asyncio
import gc

import pytest

from shared.errors import PeerLostError
from shared.tasks import Tasks

pytestmark = pytest.mark.anyio


async def test_a_failure_that_meets_a_cancellation_is_not_reported_as_forgotten() -> None:
    """A pull that its caller cancels may fail at that very moment: the cancellation stands."""
    forgotten: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: forgotten.append(context))
    tasks, begun = Tasks(), asyncio.Event()

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


async def test_what_a_started_task_raises_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def fails() -> None:
        raise OSError("the reason")

    tasks = Tasks()
    tasks.start(fails())
    await tasks.drain(5.0)
    assert len(tasks) == 0
    assert "a background task failed" in caplog.text
    assert "the reason" in caplog.text


async def test_close_returns_when_all_have_ended_and_lets_no_caller_wait() -> None:
    tasks, ended = Tasks(), asyncio.Event()

    async def ends_slowly() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.set()

    tasks.start(ends_slowly())
    caller = asyncio.create_task(tasks.run(asyncio.Event().wait()))
    await asyncio.sleep(0)
    await tasks.close()
    assert ended.is_set()
    with pytest.raises(PeerLostError):
        await caller
    with pytest.raises(PeerLostError):
        await tasks.run(asyncio.Event().wait())
