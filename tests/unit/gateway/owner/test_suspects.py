"""A request that workers die of: where it goes, whom it takes along, and how it ends.

Guards: one client that takes a pool down, and innocents that are failed for what they were near.
"""

import math
from dataclasses import replace
from typing import Any

import pytest

from services.gateway.owner.convicts import Convicts
from services.gateway.owner.machine.crashes import Crashes
from services.gateway.owner.placement.router import Placement
from services.gateway.owner.placement.suspect_lane import (
    ALONE_PATIENCE_S,
    SHARED_PATIENCE_S,
    SuspectLane,
)
from shared.errors import AttemptError, RequestError
from shared.protocol import Assign, Attempt, Fail, Handback, Pong, Receive
from shared.state.keys import CONVICT_TTL_S
from shared.state.memory_records import MemoryGatewayLiveness, MemoryRequestRecords
from tests.support.fakes.manual_clock import ManualClock
from tests.unit.gateway.owner.gateway_bench import (
    FULL,
    IDLE,
    Bench,
    FakeWorker,
    settle,
    started,
    until,
)
from tests.unit.gateway.owner.placement.test_router import view


def crash(worker: FakeWorker, attempt: Attempt, *, alone: bool = False) -> None:
    """Its engine dies while it computes this."""
    inc = worker.incarnation
    worker.say(Fail(attempt, inc, "engine_died", "", own_fault=True, alone=alone))


def assigned(workers: list[FakeWorker], rid: str, epoch: int) -> list[tuple[FakeWorker, Assign]]:
    return [
        (worker, assign)
        for worker in workers
        for assign in worker.all(Assign)
        if assign.work.attempt == (rid, epoch)
    ]


async def next_assign(workers: list[FakeWorker], rid: str, epoch: int) -> tuple[FakeWorker, Assign]:
    await until(lambda: bool(assigned(workers, rid, epoch)))
    (found,) = assigned(workers, rid, epoch)
    return found


async def suspect(workers: list[FakeWorker], *rids: str) -> None:
    """An engine dies under each attempt, twice."""
    for epoch in range(2):
        for rid in rids:
            worker, assign = await next_assign(workers, rid, epoch)
            crash(worker, assign.work.attempt)


def decoders(num: int) -> list[FakeWorker]:
    return [FakeWorker("decode", f"d{at}") for at in range(num)]


@pytest.mark.anyio
async def test_after_two_deaths_it_is_computed_alone_and_after_two_of_those_it_fails() -> None:
    workers = decoders(9)
    async with started(Bench("agg")) as bench:
        await bench.add(*workers)
        request = bench.request()
        generation = bench.door.submit(request)
        for epoch in range(4):
            worker, assign = await next_assign(workers, "r1", epoch)
            assert assign.work.alone == (epoch >= 2)
            crash(worker, assign.work.attempt, alone=assign.work.alone)
        with pytest.raises(AttemptError) as failed:
            await anext(generation)
        assert failed.value.code == "request_crashed_worker"
        with pytest.raises(RequestError, match="another 10 minutes"):
            bench.door.submit(replace(request, rid="r2"))
        bench.door.submit(replace(request, rid="r3", prompt_ids=(1, 2, 3)))


@pytest.mark.anyio
async def test_those_that_a_dead_engine_did_not_compute_go_on_without_a_strike() -> None:
    workers = decoders(9)
    async with started(Bench("agg", max_attempts=1)) as bench:
        await bench.add(*workers)
        bench.door.submit(bench.request())
        for epoch in range(8):
            worker, assign = await next_assign(workers, "r1", epoch)
            assert not assign.work.alone
            attempt = assign.work.attempt
            worker.say(Handback(attempt, worker.incarnation, "engine_died"))
            worker.die()
        assert "r1" in {live.rid for live in bench.requests.all()}


@pytest.mark.anyio
async def test_a_worker_whose_engine_died_is_given_nothing_more() -> None:
    first, second = decoders(2)
    async with started(Bench("agg")) as bench:
        await bench.add(first, second)
        bench.door.submit(bench.request())
        worker, assign = await next_assign([first, second], "r1", 0)
        crash(worker, assign.work.attempt)
        other = second if worker is first else first
        for at in range(2, 6):
            bench.door.submit(bench.request(f"r{at}"))
        assert len(worker.all(Assign)) == 1
        assert len(other.all(Assign)) == 4


@pytest.mark.anyio
async def test_suspects_share_a_worker_and_never_take_the_last() -> None:
    workers = decoders(6)
    async with started(Bench("agg")) as bench:
        await bench.add(*workers)
        for rid in ("r1", "r2"):
            bench.door.submit(replace(bench.request(rid), prompt_ids=(int(rid[1]),) * 40))
        await suspect(workers, "r1", "r2")
        ready = [w for w in workers if bench.links.get(w.incarnation).view.ready]  # type: ignore[union-attr]
        lanes = {(await next_assign(workers, rid, 2))[0].name for rid in ("r1", "r2")}
        assert lanes == {min(w.name for w in ready)}
        for worker in ready[1:]:
            worker.die()
        lane, _ = await next_assign(workers, "r1", 2)
        lane.say(Handback(Attempt("r2", 2), lane.incarnation, "kv_pressure"))
        await settle()
        assert not assigned(workers, "r2", 3), "it might kill the only one"
        innocent = bench.door.submit(bench.request("r3"))
        assert innocent.rid in {a.work.attempt.rid for a in lane.all(Assign)}, "nobody is held up"
        back = FakeWorker("decode", "d9")
        await bench.add(back)
        assert (await next_assign([*workers, back], "r2", 3))[1].work.alone


@pytest.mark.anyio
async def test_a_suspect_waits_for_a_second_reader_too() -> None:
    sources, readers = [FakeWorker("prefill", f"p{at}") for at in range(4)], decoders(2)
    async with started(Bench("pd")) as bench:
        await bench.add(*sources, *readers)
        bench.door.submit(bench.request())
        for epoch in range(2):
            worker, assign = await next_assign(sources, "r1", epoch)
            worker.start()
            crash(worker, assign.work.attempt)
        bench.request_clock.tick()
        readers[0].die()
        worker, _ = await next_assign(sources, "r1", 2)
        worker.start()
        await settle()
        assert not any(r.work.attempt.epoch == 2 for r in readers[1].all(Receive))
        back = FakeWorker("decode", "d0", nonce="2")
        await bench.add(back)
        await until(lambda: bool(back.all(Receive)))
        assert back.last(Receive).work.alone


@pytest.mark.parametrize(
    ("suspected", "patience_s"), [(False, SHARED_PATIENCE_S), (True, ALONE_PATIENCE_S)]
)
def test_where_there_never_were_two_the_lane_is_open(suspected: bool, patience_s: float) -> None:
    clock, crashes = ManualClock(100.0), Crashes(64)
    lane = SuspectLane(clock)
    for number in range(1 + suspected):
        crashes.note(f"d{number}", 0, alone=False)

    def is_open(role: str, *names: str) -> bool:
        views = [view(name) for name in names]
        if role == "reader":
            return lane.spares_a_reader(crashes, views, "p0")
        reason: Any = "no_prefill_worker" if role == "stand-in" else ""
        mode: Any = "prefill" if role == "prefill" else "local"
        return lane.spares_a_worker(crashes, Placement(mode, reason, views))

    assert is_open("reader", "d0") and is_open("prefill", "p0") and is_open("stand-in", "d0", "d1")
    lane.note([view("p0"), view("d0")])
    assert is_open("reader", "d0") and is_open("prefill", "p0"), "there never were two"
    assert not is_open("stand-in", "d0", "d1")
    lane.note([view("p0"), view("p1"), view("d0"), view("d1")])
    clock.advance(patience_s - 0.1)
    assert not is_open("reader", "d0", "p1")
    assert not is_open("prefill", "p0")
    assert not is_open("stand-in", "d0", "d1"), "prefill workers come back"
    clock.advance(0.1)
    assert is_open("reader", "d0") and is_open("prefill", "p0") and is_open("stand-in", "d0", "d1")
    assert not lane.spares_a_worker(crashes, None)
    assert lane.spares_a_worker(Crashes(64), None)


@pytest.mark.anyio
async def test_patience_begins_with_the_death_and_not_with_the_request() -> None:
    workers = decoders(2)
    async with started(Bench("agg")) as bench:
        await bench.add(*workers)
        bench.door.submit(bench.request())
        worker, assign = await next_assign(workers, "r1", 0)
        bench.clock.advance(2 * SHARED_PATIENCE_S)
        crash(worker, assign.work.attempt)
        await settle()
        assert not assigned(workers, "r1", 1)
        bench.clock.advance(SHARED_PATIENCE_S)
        await next_assign(workers, "r1", 1)


@pytest.mark.anyio
async def test_where_no_worker_comes_back_it_ends_like_any_other() -> None:
    (worker,) = decoders(1)
    async with started(Bench("agg", first_token_timeout_s=60.0)) as bench:
        await bench.add(worker)
        generation = bench.door.submit(replace(bench.request(), timeout_s=math.inf))
        crash(worker, (await next_assign([worker], "r1", 0))[1].work.attempt)
        worker.die()
        bench.clock.advance(61.0)
        bench.request_clock.tick()
        with pytest.raises(AttemptError) as failed:
            await anext(generation)
        assert failed.value.status == 504


@pytest.mark.anyio
async def test_copies_of_it_end_with_it_and_two_deaths_of_theirs_are_enough() -> None:
    workers = decoders(12)
    async with started(Bench("agg")) as bench:
        await bench.add(*workers)
        copies = [bench.door.submit(bench.request(f"r{at}")) for at in range(3)]
        other = bench.door.submit(replace(bench.request("other"), prompt_ids=(1, 2, 3)))
        await suspect(workers, "r0", "r1", "r2")
        for rid in ("r0", "r1"):
            worker, assign = await next_assign(workers, rid, 2)
            crash(worker, assign.work.attempt, alone=True)
        for copy in copies:
            with pytest.raises(AttemptError, match="workers die of it"):
                await anext(copy)
        assert bench.live(other.rid).machine.active


@pytest.mark.anyio
async def test_a_suspect_without_room_holds_nobody_up() -> None:
    workers = decoders(6)
    async with started(Bench("agg")) as bench:
        await bench.add(*workers)
        bench.door.submit(bench.request())
        await suspect(workers, "r1")
        lane, _ = await next_assign(workers, "r1", 2)
        lane.load = FULL
        lane.start()
        lane.say(Handback(Attempt("r1", 2), lane.incarnation, "kv_pressure"))
        await settle()
        assert not assigned(workers, "r1", 3)
        for at in range(2, 5):
            rid = bench.door.submit(bench.request(f"r{at}")).rid
            assert assigned(workers, rid, 0)
        lane.load = IDLE
        lane.say(Pong(1, IDLE))
        assert (await next_assign(workers, "r1", 3))[0] is lane


@pytest.mark.anyio
async def test_after_one_death_it_does_not_take_the_last_worker_at_once() -> None:
    first, second = decoders(2)
    async with started(Bench("agg")) as bench:
        await bench.add(first, second)
        bench.door.submit(bench.request())
        worker, assign = await next_assign([first, second], "r1", 0)
        crash(worker, assign.work.attempt)
        await settle()
        assert not assigned([first, second], "r1", 1)
        back = FakeWorker("decode", worker.name, nonce="2")
        await bench.add(back)
        assert not (await next_assign([first, second, back], "r1", 1))[1].work.alone


def refuses(one: Convicts, bench: Bench, **fields: object) -> bool:
    try:
        one.check(replace(bench.request(), **fields))  # type: ignore[arg-type]
    except RequestError:
        return True
    return False


@pytest.mark.anyio
async def test_all_gateways_refuse_it_for_ten_minutes() -> None:
    bench, clock = Bench(), ManualClock(100.0)
    records = MemoryRequestRecords(MemoryGatewayLiveness(), clock)
    here, there, elsewhere = (
        Convicts("demo", clock),
        Convicts("demo", clock),
        Convicts("another", clock),
    )
    here.note(bench.request())
    assert refuses(here, bench) and not refuses(there, bench)
    assert not await there.share(records)
    assert [await one.share(records) for one in (here, there, elsewhere)] == [False, True, True]
    assert refuses(there, bench)
    assert not refuses(elsewhere, bench), "of another model"
    sampling = bench.request().sampling
    assert refuses(there, bench, sampling=replace(sampling, seed=5), rid="r9", tenant="x")
    assert not refuses(there, bench, sampling=replace(sampling, top_k=5))
    assert not refuses(there, bench, prompt_ids=(*bench.request().prompt_ids, 1))
    await records.convict((), 600)
    records._convicted_until_s.clear()
    there.share_again()
    assert not await there.share(records)
    assert await Convicts("demo", clock).share(records), "redis lost its data"
    clock.advance(CONVICT_TTL_S - 1)
    await there.share(records)
    assert refuses(there, bench)
    clock.advance(2)
    assert not refuses(there, bench)
    await there.share(records)
    assert not refuses(there, bench)
