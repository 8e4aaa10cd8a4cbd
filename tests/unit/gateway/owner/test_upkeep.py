"""What the gateway does with Redis once a second, and that an outage of it stops nothing."""

import asyncio

import pytest

from services.gateway.owner import upkeep as upkeep_module
from services.gateway.owner.upkeep import Upkeep
from shared.kv.block_hash import STRIDE, chain_hashes
from shared.protocol import Assign
from shared.queue.backlog import BacklogEntry
from shared.state.kv_events import KVSnapshot
from shared.state.kv_feed import PrefixFeed
from shared.state.reaper import Reaper
from shared.state.records import AdmittedRequest, RequestState
from tests.support.fakes.memory_kv_events import MemoryKVEvents
from tests.unit.gateway.owner.gateway_bench import (
    G_INC,
    POOL,
    Bench,
    FakeWorker,
    settle,
    started,
    until,
)

pytestmark = pytest.mark.anyio


def upkeep_of(bench: Bench, events: MemoryKVEvents) -> Upkeep:
    return Upkeep(
        G_INC,
        bench.requests,
        bench.links,
        bench.records,
        bench.backlog,
        Reaper(G_INC, bench.records.liveness, bench.records, bench.clock),
        PrefixFeed(events, bench.index),
    )


async def test_a_beat_marks_progress_and_readmits_after_a_loss() -> None:
    p, d = FakeWorker("prefill", "p0"), FakeWorker("decode", "d0")
    async with started(Bench()) as bench:
        upkeep = upkeep_of(bench, MemoryKVEvents())
        await upkeep.beat()
        await bench.add(p, d)
        bench.door.submit(bench.request())
        await settle()
        p.start()
        p.tokens(0, 10)
        await upkeep.tend_records()
        record = await bench.records.read("r1")
        assert record is not None and record.num_output_tokens == 1
        bench.records._stored.clear()
        bench.records.liveness.beats.clear()
        await upkeep.beat()
        await settle()
        record = await bench.records.read("r1")
        assert record is not None and record.state is RequestState.LIVE


async def test_what_a_dead_gateway_left_is_reaped() -> None:
    """Its record, and the choices that wait in the backlog by ids of their own."""
    async with started(Bench()) as bench:
        upkeep = upkeep_of(bench, MemoryKVEvents())
        dead = AdmittedRequest("r9", "g1.dead", "t", POOL, 5, 0)
        await bench.records.admit(dead)
        for choice in ("r9.0", "r9.1"):
            await bench.backlog.put(BacklogEntry(choice, "g1.dead", "t", 5))
        await bench.backlog.put(BacklogEntry("r1", G_INC, "t", 5))
        for _ in range(8):
            await upkeep.beat()
            await upkeep.tend_records()
            bench.clock.advance(1.9)
        record = await bench.records.read("r9")
        assert record is not None and record.state is RequestState.ABANDONED
        left = await bench.backlog.pop()
        assert left is not None and left.rid == "r1"
        assert await bench.backlog.length() == 0


async def test_a_gateway_that_reaps_slowly_beats_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else another gateway takes it for dead, and what it answers meanwhile is billed nothing."""
    monkeypatch.setattr(upkeep_module, "BEAT_INTERVAL_S", 0.01)
    monkeypatch.setattr(upkeep_module, "RECORDS_INTERVAL_S", 0.01)
    async with started(Bench()) as bench:
        beats, stuck = bench.records.liveness.beats, asyncio.Event()

        async def live_requests(gateway_incarnation: str) -> frozenset[str]:
            stuck.set()
            await asyncio.Event().wait()
            raise AssertionError

        monkeypatch.setattr(bench.records.liveness, "live_requests", live_requests)
        await bench.records.liveness.beat("g1.dead")
        upkeep = upkeep_of(bench, MemoryKVEvents())
        for _ in range(8):
            await upkeep.beat()
            bench.clock.advance(1.9)
        upkeep.start()
        await stuck.wait()
        begin = beats[G_INC]
        await until(lambda: beats[G_INC] > begin + 20)
        await upkeep.close()


async def test_prefix_caches_steer_the_next_request() -> None:
    p, q, d = FakeWorker("prefill", "p0"), FakeWorker("prefill", "p1"), FakeWorker("decode", "d0")
    async with started(Bench()) as bench:
        await bench.add(p, q, d)
        events = MemoryKVEvents()
        long = 16 * STRIDE + 10
        bench.door.submit(bench.request("r1", long))
        assign = p.last(Assign)
        hashes = chain_hashes(assign.work.hash_root, assign.work.token_ids, 16)
        await events.reset(KVSnapshot(q.incarnation, 1, frozenset({hashes[STRIDE - 1]})))
        upkeep = upkeep_of(bench, events)
        upkeep.start()
        await until(lambda: bench.index.holders(hashes) == {q.incarnation: STRIDE})
        await upkeep.close()
        bench.clock.advance(1.0)
        p.start()
        bench.door.submit(bench.request("r2", long))
        assert q.last(Assign).work.attempt.rid == "r2"
        receipt = bench.door.receipt("r2")
        assert receipt is not None and "prefix" in receipt["route"]
