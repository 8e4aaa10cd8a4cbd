"""A command's task can be cancelled at any moment, also in one that redis-py forgets."""

import asyncio
from collections.abc import Sequence

import pytest

from shared.state.redis_client import Argument, RedisClient
from shared.state.reply import Reply


@pytest.mark.anyio
async def test_a_cancellation_that_comes_with_the_answer_is_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As `asyncio.wait_for` of Python 3.11 does it: the answer instead of the cancellation."""
    asked = asyncio.Event()

    async def answer_instead(self: RedisClient, words: Sequence[Argument]) -> Reply:
        asked.set()
        try:
            await asyncio.sleep(60.0)
        except asyncio.CancelledError:
            return b"PONG"
        raise AssertionError("nobody cancelled")

    monkeypatch.setattr(RedisClient, "_send", answer_instead)
    async with RedisClient("unix:///nowhere") as client:
        task = asyncio.create_task(client.command("PING"))
        await asked.wait()
        task.cancel()
        await asyncio.wait([task], timeout=5.0)
        assert task.cancelled()
