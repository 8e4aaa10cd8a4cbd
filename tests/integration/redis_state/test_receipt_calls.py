"""A receipt is found through any gateway of the cell.

Guards: an operator whose load balancer leads elsewhere than the client's did; a question that stays
in Redis, or that a stranger's words break.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from services.gateway.owner.view.other_receipts import OtherReceipts
from shared.state.notes.receipt_calls import MAX_CALLS, WAIT_S, Call
from tests.integration.redis_state.backends import RedisBackend

pytestmark = [pytest.mark.anyio, pytest.mark.clock]
RECEIPT = {"id": "r1", "tenant": "", "total_ms": 7.5}


@asynccontextmanager
async def gateway(
    backend: RedisBackend, name: str, receipts: dict[str, dict[str, Any]] | None = None
) -> AsyncIterator[OtherReceipts]:
    await backend.liveness.beat(name)
    others = OtherReceipts(backend.receipt_calls(name), (receipts or {}).get)
    others.start()
    yield others
    await others.close()


async def test_each_gateway_finds_what_another_has(redis_backend: RedisBackend) -> None:
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        gateways = [
            await enter(gateway(redis_backend, "g.1", {"r1": RECEIPT})),
            await enter(gateway(redis_backend, "g.2")),
            await enter(gateway(redis_backend, "g.3")),
        ]
        found = await asyncio.gather(*(each.find("r1") for each in gateways[1:]))
        assert found == [RECEIPT, RECEIPT]
        assert await gateways[1].find("r2") is None


async def test_alone_it_asks_nobody_and_waits_for_nobody(redis_backend: RedisBackend) -> None:
    async with gateway(redis_backend, "g.1") as only, asyncio.timeout(WAIT_S / 2):
        assert await only.find("r1") is None


async def test_what_nobody_looks_at_does_not_pile_up(redis_backend: RedisBackend) -> None:
    """A gateway that died a moment ago is still asked."""
    await redis_backend.liveness.beat("g.2")
    key = redis_backend.keys.receipt_calls("g.2")
    for _ in range(MAX_CALLS):
        await redis_backend.client.command("RPUSH", key, b"old")
    assert await redis_backend.receipt_calls("g.1").ask("r1") is None
    assert await redis_backend.client.command("LLEN", key) == MAX_CALLS


async def test_words_that_are_no_question_are_skipped(redis_backend: RedisBackend) -> None:
    calls = redis_backend.receipt_calls("g.1")
    await redis_backend.liveness.beat("g.1")
    asking = asyncio.create_task(redis_backend.receipt_calls("g.2").ask("r1"))
    key = redis_backend.keys.receipt_calls("g.1")
    for words in (b"", b"\xc1", b"\x91\xa3box"):
        await redis_backend.client.command("RPUSH", key, words)
    taken: list[Call] = []
    while not taken:
        taken = await calls.taken()
        await asyncio.sleep(0.01)
    assert [call.rid for call in taken] == ["r1"]
    await calls.tell(taken[0], b"{}")
    assert await asking == b"{}"
    assert await calls.taken() == []


async def test_while_redis_is_away_a_receipt_is_not_found(redis_backend: RedisBackend) -> None:
    await redis_backend.client.command("SET", redis_backend.keys.beats, "x")
    others = OtherReceipts(redis_backend.receipt_calls("g.1"), lambda _: RECEIPT)
    assert await others.find("r1") is None
