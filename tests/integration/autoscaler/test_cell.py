"""What the autoscaler sees of a cell is what workers registered and gateways recorded."""

import math
import time
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from services.autoscaler.cell import Cell
from services.autoscaler.view import KNOWN_S
from shared.errors import StateUnavailableError
from shared.message_parts.step_costs import StepCosts
from shared.protocol import Load
from shared.queue.backlog import BacklogEntry, Waiting
from shared.queue.redis_backlog import RedisBacklog
from shared.state.embedded import EmbeddedRedis
from shared.state.keys import Keys
from shared.state.records import AdmittedRequest, Outcome, RequestState, pool_id
from shared.state.redis_client import RedisClient
from shared.state.redis_records import RedisRequestRecords
from shared.state.redis_registry import RedisWorkerRegistry
from shared.state.traffic import Traffic
from tests.integration.redis_state.test_registry_contract import ENTRY
from tests.support.fakes.manual_clock import ManualClock

pytestmark = pytest.mark.anyio

COSTS = StepCosts(5e-3, 2e-5, 3e-8, 2.5e-5, 2e-9)
LOAD = Load(5, 15, 3, 2, 80, 10, 20, 50, unreserved_tokens={"p": 7, "q": 4}, step_costs=COSTS)
POOL = "m@rev:a"
PREFILL = replace(ENTRY, pool=POOL, block_size=32, load=LOAD, num_attempts=4, step_tokens=512)
OLD = replace(PREFILL, worker_id="d-0", incarnation="d-0.bb", role="decode", load=None)


@pytest.fixture
async def client() -> AsyncIterator[RedisClient]:
    with EmbeddedRedis() as server:
        async with RedisClient(server.url, timeout_s=0.5) as client:
            yield client


def cell_of(client: RedisClient, clock: ManualClock, pool: str = "") -> Cell:
    keys = Keys()
    backlog = RedisBacklog(client, keys, pool, 1)
    registry, traffic = RedisWorkerRegistry(client, keys), Traffic(client, keys)
    return Cell(registry, traffic, backlog, clock, pool)


async def end(client: RedisClient, rid: str, age_s: float, num_prompt_tokens: int) -> None:
    received_ns = time.time_ns() - round(age_s * 1e9)
    request = AdmittedRequest(rid, "g.1", "acme", pool_id(POOL), num_prompt_tokens, received_ns)
    outcome = Outcome(RequestState.DONE, "stop", 7, 64)
    await RedisRequestRecords(client, Keys()).finish(request, outcome)


async def test_workers_are_seen_with_their_load_and_since_when(client: RedisClient) -> None:
    clock, registry = ManualClock(), RedisWorkerRegistry(client, Keys())
    cell = cell_of(client, clock)
    await registry.register(PREFILL)
    (first,) = (await cell.look()).workers["prefill"]
    assert cell.pool == POOL
    assert first.age_s == 0
    clock.advance(30)
    await registry.register(OLD)
    seen = await cell.look()
    (prefill,), (decode,) = seen.workers["prefill"], seen.workers["decode"]
    assert (prefill.name, prefill.incarnation, prefill.age_s) == ("p-0", "p-0.aa", 30)
    assert (prefill.num_attempts, prefill.num_queued_tokens) == (4, 15)
    assert (prefill.num_held_blocks, prefill.num_free_blocks, prefill.num_blocks) == (50, 30, 80)
    assert (prefill.num_unreserved_tokens, prefill.costs) == (11, COSTS)
    assert (prefill.step_tokens, prefill.block_size) == (512, 32)
    assert not any(decode.costs), "an earlier release does not say"
    absurd = replace(LOAD, state="draining", step_costs=COSTS._replace(row_s=math.nan))
    await registry.register(replace(PREFILL, load=absurd))
    (prefill,) = (await cell.look()).workers["prefill"]
    assert prefill.is_draining and not any(prefill.costs), "nor does one that tells no time"


async def test_arrivals_are_in_the_order_they_came_and_forgotten_in_time(
    client: RedisClient,
) -> None:
    clock = ManualClock()
    clock.advance(5_000)
    cell = cell_of(client, clock, POOL)
    await end(client, "a", 10, 100)
    await end(client, "b", 60, 200)
    seen = await cell.look()
    assert [item.num_prompt_tokens for item in seen.arrivals] == [200, 100]
    earlier, later = seen.arrivals
    assert earlier.at_s == pytest.approx(4_940, abs=3)
    assert later.at_s == pytest.approx(4_990, abs=3)
    assert (later.num_cached_tokens, later.num_output_tokens) == (64, 7)
    clock.advance(KNOWN_S - 30)
    await end(client, "c", 0, 300)
    assert [item.num_prompt_tokens for item in (await cell.look()).arrivals] == [100, 300]


async def test_what_waits_is_counted_with_its_tokens(client: RedisClient) -> None:
    backlog = RedisBacklog(client, Keys(), POOL, 10)
    for number in range(3):
        await backlog.put(BacklogEntry(f"r{number}", "g.1", "acme", 100))
    assert (await cell_of(client, ManualClock(), POOL).look()).waiting == Waiting(3, 300)


async def test_which_pool_is_meant_must_be_clear(client: RedisClient) -> None:
    registry = RedisWorkerRegistry(client, Keys())
    cell = cell_of(client, ManualClock())
    with pytest.raises(StateUnavailableError, match="none"):
        await cell.look()
    await registry.register(PREFILL)
    await registry.register(replace(OLD, pool="other"))
    with pytest.raises(StateUnavailableError, match="m@rev:a, other; name one with --pool"):
        await cell.look()
    assert (await cell_of(client, ManualClock(), POOL).look()).workers["prefill"]
    for name in ("org/m@rev:a", "small@rev:a", "small@rev:b"):
        await registry.register(replace(OLD, pool=name, incarnation=f"{name}.1"))
    by_model = cell_of(client, ManualClock(), "org/m")
    assert len((await by_model.look()).workers[OLD.role]) == 1
    assert by_model.pool == "org/m@rev:a"
    await registry.register(replace(OLD, pool="o@m@rev:a", incarnation="o.1"))
    assert len((await cell_of(client, ManualClock(), "o@m").look()).workers[OLD.role]) == 1
    await registry.remove("org/m@rev:a", "org/m@rev:a.1")
    assert (await by_model.look()).workers[OLD.role] == (), "its pool is known, and has none left"
    for model, told in (("small", "2 pools of small"), ("gone", "no pool of gone; ")):
        with pytest.raises(StateUnavailableError, match=told):
            await cell_of(client, ManualClock(), model).look()


async def test_half_a_picture_is_none() -> None:
    with EmbeddedRedis() as server:
        async with RedisClient(server.url, timeout_s=0.2) as client:
            cell = cell_of(client, ManualClock(), POOL)
            await cell.look()
    with pytest.raises(StateUnavailableError):
        await cell.look()
