"""Slots: pulls of one source wait for each other, those of another source do not."""

import asyncio
import gc

import pytest

from shared.transfer.slots import Slots

pytestmark = pytest.mark.anyio


async def test_a_pull_waits_for_those_of_its_own_source_only() -> None:
    slots = Slots(2)
    first, again, other = slots.of("p.1"), slots.of("p.1"), slots.of("p.2")
    await first.acquire()
    await first.acquire()
    waiting = asyncio.create_task(again.acquire())
    async with asyncio.timeout(5):
        await other.acquire()
    assert not waiting.done()
    first.release()
    async with asyncio.timeout(5):
        await waiting


async def test_a_source_is_forgotten_with_its_last_pull_and_not_before() -> None:
    slots = Slots(1)
    first, second = slots.of("p.1"), slots.of("p.1")
    await first.acquire()
    del first
    gc.collect()
    assert slots.of("p.1").locked()
    del second
    gc.collect()
    assert not slots.of("p.1").locked()
