"""A gateway process that knows nothing of its workers but what they register, and a worker that
comes back at its former port."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shared.state.keys import Keys
from shared.state.redis_client import RedisClient
from shared.state.redis_registry import RedisWorkerRegistry
from tests.support.pairs.gateway_process import NUM_TOKENS, GatewayProcess, free_port
from tests.support.pairs.worker_process import WorkerProcess, wait_for
from tests.support.redis_server import RedisServers

pytestmark = [pytest.mark.anyio, pytest.mark.clock]

NUM_STREAMS = 8
MAX_STALL_S = 1.0


@pytest.fixture
def gateway(redis_servers: RedisServers, tmp_path: Path) -> Iterator[GatewayProcess]:
    process = GatewayProcess(redis_servers.url(), tmp_path / "gateway.log")
    yield process
    process.kill()


def told_capacity(gateway: GatewayProcess) -> dict[str, Any] | None:
    """Once the worker has told what its memory is used for, and two PONGs apart how it samples."""
    answer = gateway.get("/v1/capacity?tokens=60&usd_per_gpu_hour=2")
    assert answer is not None and answer[0] == 200
    body: dict[str, Any] = answer[1]
    return body if body["usd_per_million_tokens"] and body["kv_token_bytes"] else None


async def test_a_worker_of_another_type_is_found_and_may_come_back_at_its_port(
    gateway: GatewayProcess, redis_servers: RedisServers, tmp_path: Path
) -> None:
    """The gateway would say float32 here. The dead incarnation stays listed, as it does in a
    registry that nobody can write: each dial for it meets the new one, which must not mind."""
    url = redis_servers.url()
    flags: dict[str, Any] = {"redis": url, "kv_blocks": 256, "dtype": "bfloat16"}
    flags |= {"block_size": 8, "worker_port": free_port()}
    old = WorkerProcess(tmp_path, "decode", **flags)
    entry = await old.entry(url)
    await asyncio.to_thread(wait_for, gateway.is_ready, 60.0)
    status = gateway.get("/v1/baton/status")[1]  # type: ignore[index]
    assert status["block_size"] == 8
    log = gateway.log_path.read_text()
    told = f"listening on {status['url']}, probes and metrics on {status['admin_url']}\n"
    assert log.count(told) == 1 and "uvicorn" not in log
    old.kill()

    async def stay_listed() -> None:
        async with RedisClient(url) as client:
            while True:
                await RedisWorkerRegistry(client, Keys()).register(entry)
                await asyncio.sleep(0.5)

    listing = asyncio.create_task(stay_listed())
    new = WorkerProcess(tmp_path, "decode", old.worker_id, **flags)
    try:
        inc = (await new.entry(url)).incarnation
        found = await asyncio.to_thread(
            wait_for, lambda: True if inc in gateway.worker_incs() else None, 20.0
        )
        assert found
        streams = [asyncio.to_thread(gateway.stream) for _ in range(NUM_STREAMS)]
        for rid, num_tokens, gap_s in await asyncio.gather(*streams):
            receipt = gateway.get(f"/v1/baton/requests/{rid}")
            assert receipt is not None
            assert (num_tokens, len(receipt[1]["attempts"])) == (NUM_TOKENS, 1)
            assert gap_s < MAX_STALL_S
        capacity = await asyncio.to_thread(wait_for, lambda: told_capacity(gateway), 10.0)
        (worker,) = capacity["workers"]
        assert worker["memory_bytes"]["kv"] == worker["kv_tokens"] * capacity["kv_token_bytes"]
        assert worker["kv_tokens"] == 256 * 8 and worker["ranks"] == 1
        assert capacity["sequences"] == [{"tokens": 60, "fit": 256 // 8, "fit_now": 256 // 8}]
        assert capacity["usd_per_million_tokens"] > 0
    finally:
        listing.cancel()
        new.kill()
