"""What an autoscaler sees of a real cell, and what a drain that it asks for does there."""

import re
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from services.autoscaler.cell import Cell, CellView
from services.autoscaler.drains import DRAIN_S
from services.gateway.owner.view.scaling_feed import LOOK_S
from shared.clock import SystemClock
from shared.message_parts.step_costs import NO_COSTS
from shared.queue.redis_backlog import RedisBacklog
from shared.state.embedded import EmbeddedRedis
from shared.state.keys import Keys
from shared.state.notes.scaling import TELL_S
from shared.state.redis_client import RedisClient
from shared.state.redis_registry import RedisWorkerRegistry
from shared.state.traffic import Traffic
from tests.e2e.cluster import Cluster, running
from tests.integration.cli.test_autoscaler_command import running as autoscaler

NUM_REQUESTS, NUM_TOKENS = 3, 8
BODY = {"prompt": [7] * 40, "max_tokens": NUM_TOKENS, "ignore_eos": True, "stream": True}


async def look(url: str, *, drain: str = "", for_s: float = 0.0) -> CellView:
    """The cell now; before, asks a worker to drain if one is named."""
    keys = Keys()
    async with RedisClient(url) as redis:
        registry, backlog = RedisWorkerRegistry(redis, keys), RedisBacklog(redis, keys, "", 1)
        cell = Cell(registry, Traffic(redis, keys), backlog, SystemClock())
        seen = await cell.look()
        for worker in seen.workers["decode"]:
            if drain and worker.name.startswith(drain):
                await registry.drain(cell.pool, worker.incarnation, for_s)
        return seen


def states(cluster: Cluster) -> list[str]:
    """Of the decode workers, by name."""
    return [worker["state"] for worker in cluster.workers("decode")]


@pytest.mark.e2e
@pytest.mark.redis
def test_arrivals_and_costs_are_seen_and_a_drained_worker_serves_again(tmp_path: Path) -> None:
    with (
        EmbeddedRedis() as server,
        running(tmp_path, "--topology", "pd", "--decode", "2", "--redis", server.url) as cluster,
    ):
        answers = cluster.answers([BODY] * NUM_REQUESTS)
        assert all(answer.complete for answer in answers)
        seen = anyio.run(look, server.url)
        assert [item.num_prompt_tokens for item in seen.arrivals] == [40] * NUM_REQUESTS
        assert {item.num_output_tokens for item in seen.arrivals} == {NUM_TOKENS}
        assert all(0 < (item.ttft_s or 0) < (item.age_s or 0) for item in seen.arrivals)
        workers = [*seen.workers["prefill"], *seen.workers["decode"]]
        assert len(workers) == 3
        assert all(worker.costs != NO_COSTS and worker.num_blocks for worker in workers)

        async def drain(for_s: float) -> CellView:
            return await look(server.url, drain="decode-0", for_s=for_s)

        anyio.run(drain, DRAIN_S)
        cluster.wait(lambda: states(cluster) == ["draining", "ready"], 5)
        assert all(answer.complete for answer in cluster.answers([BODY] * NUM_REQUESTS))

        def is_empty() -> bool:
            first, second = anyio.run(look, server.url).workers["decode"]
            return first.is_draining and not first.num_attempts and not second.is_draining

        cluster.wait(is_empty, 5)
        anyio.run(drain, 0.0)
        cluster.wait(lambda: states(cluster) == ["ready", "ready"], 5)


@pytest.mark.e2e
@pytest.mark.redis
def test_a_gateway_shows_what_an_autoscaler_decided(tmp_path: Path) -> None:
    with (
        EmbeddedRedis() as server,
        running(tmp_path, "--topology", "agg", "--redis", server.url) as cluster,
    ):
        page = re.search(r"operator's page (\S+)/ui", cluster.log.read_text(encoding="utf-8"))
        assert page is not None

        def told() -> Any:
            live = httpx.get(f"{page[1]}/v1/baton/live", timeout=10).json()
            return live["autoscaler"]

        assert told() is None
        with autoscaler("--redis", server.url, "--every-s", "1"):
            cluster.wait(told, 2 * (TELL_S + LOOK_S))
        shown = told()
        assert (shown["mode"], shown["acts"]) == ("advise", False)
        by_role = {role["role"]: role for role in shown["roles"]}
        assert (by_role["decode"]["replicas"], by_role["decode"]["wanted"]) == (1, 1)
