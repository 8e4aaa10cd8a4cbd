"""Tenants share what waits and what is served: the line in memory, and what FINISH says of it."""

from dataclasses import replace

import pytest

from services.gateway.owner.generation import GenerateRequest
from shared.errors import OverloadedError
from shared.protocol import Assign, Attempt, Pong, Refuse
from shared.state.records import Outcome
from tests.unit.gateway.owner.gateway_bench import (
    FULL,
    IDLE,
    Bench,
    FakeWorker,
    settle,
    started,
)
from tests.unit.gateway.owner.test_saturation import has_room, leave_one_each, pop, workers

pytestmark = pytest.mark.anyio


def of_tenant(bench: Bench, rid: str, weight: int = 1, max_tokens: int = 3) -> GenerateRequest:
    """Its id begins with its tenant's name."""
    request = bench.request(rid, num_prompt=40, max_tokens=max_tokens)
    return replace(request, tenant=rid.split(".", maxsplit=1)[0], weight=weight)


def submit(bench: Bench, *rids: str) -> list[str]:
    """Those that were taken."""
    taken = []
    for rid in rids:
        try:
            bench.door.submit(of_tenant(bench, rid))
        except OverloadedError:
            continue
        taken.append(rid)
    return taken


def assigned(worker: FakeWorker) -> list[str]:
    return [assign.work.attempt.rid for assign in worker.all(Assign)]


async def test_a_tenant_that_fills_the_line_leaves_others_their_places() -> None:
    p, d = workers()
    async with started(Bench(max_backlog=4)) as bench:
        await bench.add(p, d)
        assert len(submit(bench, *(f"many.{n}" for n in range(6)))) == 4
        assert submit(bench, "few.0", "few.1", "few.2") == ["few.0", "few.1"]
        await settle()
        assert bench.door.status()["requests"] == {"live": 6}, "the backlog took them too"
        has_room(p, 900)
        order = [await pop(bench, p) for _ in range(6)]
        assert order == ["many.0", "few.0", "many.1", "few.1", "many.2", "many.3"]


async def test_how_long_a_tenant_would_wait_is_how_many_go_before_it() -> None:
    """One leaves the line every 0.6 s or so: the fourth in it would wait too long, and so would
    another of its tenant, but not one of a tenant of which nobody waits."""
    p, d = workers()
    async with started(Bench(max_backlog=100, max_wait_s=1.8)) as bench:
        await bench.add(p, d)
        leave_one_each(bench, p, 0.6, num_left=3)
        with pytest.raises(OverloadedError):
            bench.door.submit(bench.request("late"))
        assert submit(bench, "few.0") == ["few.0"]


async def test_a_gateway_that_places_by_itself_keeps_the_shares() -> None:
    """Nobody pops: Redis is away, or the workers are slow to ask."""
    p, d = workers()
    async with started(Bench(max_backlog=100)) as bench:
        await bench.add(p, d)
        submit(bench, *(f"many.{n}" for n in range(4)), *(f"few.{n}" for n in range(2)))
        p.load = IDLE
        p.say(Pong(1, IDLE))
        bench.core.requests.place_waiting()
        assert assigned(p) == ["many.0", "few.0", "many.1", "few.1", "many.2", "many.3"]


async def test_who_comes_after_a_placement_is_ordered_as_in_the_backlog() -> None:
    orders = []
    for by_worker in (False, True):
        p, d = workers()
        async with started(Bench(max_backlog=100)) as bench:
            await bench.add(p, d)
            submit(bench, *(f"many.{n}" for n in range(3)))
            await settle()
            if by_worker:
                has_room(p, 900)
                orders.append([await pop(bench, p)])
                submit(bench, "few.0")
                await settle()
                orders[-1] += [await pop(bench, p) for _ in range(3)]
                continue
            p.load = replace(FULL, room_tokens=40)
            p.say(Pong(1, p.load))
            bench.core.requests.place_waiting()
            submit(bench, "few.0")
            p.load = IDLE
            p.say(Pong(2, IDLE))
            bench.core.requests.place_waiting()
            orders.append(assigned(p))
    assert orders == [["many.0", "few.0", "many.1", "many.2"]] * 2


async def test_a_heavier_tenant_is_placed_more_often() -> None:
    p, d = workers()
    async with started(Bench(max_backlog=100)) as bench:
        await bench.add(p, d)
        for n in range(4):
            bench.door.submit(of_tenant(bench, f"heavy.{n}", weight=2))
        for n in range(2):
            bench.door.submit(of_tenant(bench, f"light.{n}"))
        p.load = IDLE
        p.say(Pong(1, IDLE))
        bench.core.requests.place_waiting()
        order = [rid.split(".")[0] for rid in assigned(p)]
        assert order == ["heavy", "light", "heavy", "heavy", "light", "heavy"]


def ends_of(bench: Bench) -> list[int]:
    """What FINISH is told from now on that tenants owe."""
    owed: list[int] = []
    bench.records.settle = lambda priority, tenant, amount: owed.append(amount)
    return owed


def answer(bench: Bench, p: FakeWorker, d: FakeWorker, num_cached: int = 0) -> None:
    """The last request that was assigned gets its three tokens."""
    p.start(num_cached)
    p.tokens(0, 5)
    d.run(p.last(Assign), 0, 5, 6)
    d.run(p.last(Assign), 2, 7, reason="length")


async def test_what_came_without_waiting_is_owed_whole_and_what_waited_beyond_its_charge() -> None:
    p, d = FakeWorker("prefill", "p0"), FakeWorker("decode", "d0")
    async with started(Bench(max_backlog=100)) as bench:
        await bench.add(p, d)
        owed = ends_of(bench)
        submit(bench, "t.0")
        answer(bench, p, d, num_cached=16)
        await settle()
        assert owed == [40 - 16 + 3]
        p.load = FULL
        p.say(Pong(1, FULL))
        submit(bench, "t.1")
        await settle()
        has_room(p, 900)
        await pop(bench, p)
        answer(bench, p, d)
        await settle()
        assert owed[1:] == [0], "an answer of three tokens was expected, as the one before"


async def test_a_client_that_leaves_the_line_is_charged_nothing() -> None:
    p, d = workers()
    async with started(Bench(max_backlog=100)) as bench:
        await bench.add(p, d)
        owed = ends_of(bench)
        submit(bench, "t.0")
        await settle()
        bench.door.cancel("t.0", 0)
        await settle()
        assert owed == [-40]


async def test_a_client_that_leaves_before_its_first_token_is_charged_its_prompt() -> None:
    """Else a tenant that always does is served for nothing."""
    p, d = FakeWorker("prefill", "p0"), FakeWorker("decode", "d0")
    async with started(Bench(max_backlog=100)) as bench:
        await bench.add(p, d)
        owed = ends_of(bench)
        submit(bench, "t.0")
        p.start(16)
        bench.door.cancel("t.0", 0)
        await settle()
        assert owed == [40 - 16]


async def test_a_request_that_workers_refuse_is_charged_once() -> None:
    p, d = FakeWorker("prefill", "p0"), FakeWorker("decode", "d0")
    async with started(Bench(max_backlog=100)) as bench:
        await bench.add(p, d)
        owed = ends_of(bench)
        submit(bench, "t.0")
        p.load = FULL
        p.say(Refuse(Attempt("t.0", 0), p.incarnation, "no_room"))
        await settle()
        assert bench.live("t.0").line_charge == 0
        has_room(p, 900)
        bench.request_clock.tick()
        answer(bench, p, d)
        await settle()
        assert owed == [43]


async def test_a_request_that_is_placed_before_the_backlog_has_answered_is_charged_once() -> None:
    """Its entry is cancelled then, and its tenant stays charged for it."""
    p, d = workers()
    async with started(Bench(max_backlog=100)) as bench:
        await bench.add(p, d)
        owed = ends_of(bench)
        submit(bench, "t.0")
        p.load = IDLE
        p.say(Pong(1, IDLE))
        bench.core.requests.place_waiting()
        assert assigned(p) == ["t.0"]
        await settle()
        assert not await bench.backlog.length()
        answer(bench, p, d)
        await settle()
        assert owed == [3], "without the 40 that the backlog charged"


def test_debts_are_not_part_of_an_outcome_that_redis_repeats() -> None:
    """FINISH answers with what is recorded, and a debt is not."""
    assert Outcome("done", "stop", 3, 0, owed=9) == Outcome("done", "stop", 3, 0)  # type: ignore[arg-type]
