"""What the contract tests cannot wait for: the life of an ended record."""

import pytest

from shared.state.keys import ENDED_TTL_S
from shared.state.memory_records import MemoryGatewayLiveness, MemoryRequestRecords
from shared.state.memory_registry import MemoryWorkerRegistry
from shared.state.records import AdmittedRequest, Outcome, RequestState
from shared.state.registry import WorkerEntry
from tests.support.fakes.manual_clock import ManualClock

pytestmark = pytest.mark.anyio

REQUEST = AdmittedRequest("r1", "g.1", "acme", "pool", 100, 0)


async def test_an_ended_record_stays_a_minute_and_a_live_one_longer() -> None:
    clock = ManualClock()
    records = MemoryRequestRecords(MemoryGatewayLiveness(), clock)
    await records.admit(REQUEST)
    clock.advance(10 * ENDED_TTL_S)
    await records.finish(REQUEST, Outcome(RequestState.DONE, "stop", 1, 0))
    clock.advance(ENDED_TTL_S - 1)
    assert await records.read("r1") is not None
    clock.advance(1)
    assert await records.read("r1") is None


async def test_a_worker_that_stops_refreshing_goes_stale() -> None:
    clock = ManualClock()
    registry = MemoryWorkerRegistry(clock, ttl_s=4)
    entry = WorkerEntry("w", "w.1", "decode", "h", 1, "pool", 2, "v", "m", 2048, 16)
    await registry.register(entry)
    clock.advance(3)
    await registry.register(entry)
    clock.advance(3)
    assert await registry.list("pool") == (entry,)
    clock.advance(1)
    assert await registry.list("pool") == ()
