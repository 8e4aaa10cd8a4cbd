"""A receipt in USD, asked over HTTP of a real gateway with a real worker.

Guarded against: a receipt that does not learn what its worker measures, and one that names a price
nobody gave.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.pairs.gateway_process import GatewayProcess
from tests.support.pairs.worker_process import WorkerProcess, wait_for
from tests.support.redis_server import RedisServers

pytestmark = [pytest.mark.anyio, pytest.mark.clock]

MS_OF_AN_HOUR = 3_600_000
PROMPT = "Once upon a time there was a small dog that lived in a big red house"
PRICE = 720.0
"""so that a millisecond costs 0.2 thousandths of a USD"""


@pytest.fixture
def gateway(redis_servers: RedisServers, tmp_path: Path) -> Iterator[GatewayProcess]:
    process = GatewayProcess(redis_servers.url(), tmp_path / "gateway.log")
    yield process
    process.kill()


def told_receipt(gateway: GatewayProcess, rid: str, query: str = "") -> dict[str, Any] | None:
    """Once the worker has told all of it."""
    answer = gateway.get(f"/v1/baton/requests/{rid}{query}")
    assert answer is not None and answer[0] == 200, answer
    body: dict[str, Any] = answer[1]
    return body if body["gpu_ms"] is not None else None


async def test_a_receipt_says_what_a_request_cost_and_what_the_cache_saved(
    gateway: GatewayProcess, redis_servers: RedisServers, tmp_path: Path
) -> None:
    url = redis_servers.url()
    worker = WorkerProcess(tmp_path, "decode", redis=url, kv_blocks=256, block_size=4)
    try:
        await worker.entry(url)
        await asyncio.to_thread(wait_for, gateway.is_ready, 60.0)
        await asyncio.to_thread(wait_for, lambda: knows_ranks(gateway), 10.0)
        first, second = (gateway.stream(PROMPT)[0] for _ in range(2))
        query = f"?usd_per_gpu_hour={PRICE}"
        told = [
            await asyncio.to_thread(wait_for, lambda rid=rid: told_receipt(gateway, rid, query))
            for rid in (first, second)
        ]
    finally:
        worker.kill()
    for body in told:
        assert body["gpu_ms"] == pytest.approx(body["compute_ms"])
        assert body["usd"] == pytest.approx(body["gpu_ms"] / MS_OF_AN_HOUR * PRICE)
        assert body["saved_usd"] == pytest.approx(body["saved_gpu_ms"] / MS_OF_AN_HOUR * PRICE)
    assert [body["cached_tokens"] > 0 for body in told] == [False, True]
    assert [body["saved_usd"] > 0 for body in told] == [False, True]
    unpriced = told_receipt(gateway, second)
    assert unpriced is not None and unpriced.keys().isdisjoint({"usd", "saved_usd"})
    refused = gateway.get(f"/v1/baton/requests/{second}?usd_per_gpu_hour=free")
    assert refused is not None
    assert (refused[0], refused[1]["error"]["param"]) == (400, "usd_per_gpu_hour")


def knows_ranks(gateway: GatewayProcess) -> bool | None:
    """The worker has answered a PING, which tells its GPUs."""
    answer = gateway.get("/v1/baton/status")
    assert answer is not None
    return True if any(worker["memory_bytes"] for worker in answer[1]["workers"]) else None
