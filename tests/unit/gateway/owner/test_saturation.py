"""When no worker has room: the line in memory, the pool's backlog, and what each client is told."""

from dataclasses import replace

import pytest

from services.gateway.owner.waiting_line import FULL_S, REPEAT_PUT_S
from shared.errors import OverloadedError
from shared.protocol import Assign, Attempt, Cancel, Handback, Load, Ping, Pong, Pull, Refuse
from shared.queue.backlog import BacklogEntry
from shared.queue.throughput import LEAST_ENDS
from tests.unit.gateway.owner.gateway_bench import FULL, IDLE, Bench, FakeWorker, settle, started

pytestmark = pytest.mark.anyio


def workers() -> tuple[FakeWorker, FakeWorker]:
    p, d = FakeWorker("prefill", "p0"), FakeWorker("decode", "d0")
    p.load = FULL
    return p, d


def has_room(worker: FakeWorker, room_tokens: int) -> None:
    worker.load = replace(IDLE, room_tokens=room_tokens, queued_tokens=1)
    worker.say(Pong(1, worker.load))


async def pop(bench: Bench, worker: FakeWorker) -> str:
    """The worker takes the next request from the backlog and asks its owner for it."""
    entry = await bench.backlog.pop()
    assert entry is not None
    worker.say(Pull(entry.rid, worker.incarnation))
    return entry.rid


def leave_one_each(bench: Bench, worker: FakeWorker, each_s: float, num_left: int) -> None:
    """A line that enough have left to know its pace, and where `num_left` wait."""
    for number in range(LEAST_ENDS + num_left):
        bench.door.submit(bench.request(f"r{number}", num_prompt=80))
    bench.clock.advance(1.0)
    for _ in range(LEAST_ENDS):
        bench.clock.advance(each_s)
        has_room(worker, 90)
        bench.request_clock.tick()
        has_room(worker, 0)


def refused(bench: Bench, rid: str, num_prompt: int) -> float:
    """Seconds after which the client of this prompt is told to come back."""
    with pytest.raises(OverloadedError) as error:
        bench.door.submit(bench.request(rid, num_prompt=num_prompt))
    return error.value.retry_after_s


async def test_a_waiting_request_is_pulled_by_the_worker_that_has_room() -> None:
    p, d = workers()
    async with started(Bench()) as bench:
        await bench.add(p, d)
        bench.door.submit(bench.request())
        await settle()
        assert not p.all(Assign)
        assert p.last(Ping).num_backlogged == 1
        assert d.last(Ping).num_backlogged == 0, "decode prefills nothing while prefill lives"
        has_room(p, 100)
        await pop(bench, p)
        assert p.last(Assign).work.attempt.rid == "r1"
        counters = bench.core.counters
        assert (counters.backlog_puts, counters.backlog_pulls) == (1, 1)
        assert counters.direct_assigns == 0


async def test_newcomers_queue_behind_those_who_wait() -> None:
    p, d = workers()
    async with started(Bench()) as bench:
        await bench.add(p, d)
        bench.door.submit(bench.request("r1"))
        await settle()
        has_room(p, 900)
        bench.door.submit(bench.request("r2"))
        await settle()
        assert not p.all(Assign)
        assert [await pop(bench, p) for _ in range(2)] == ["r1", "r2"]
        assert [assign.work.attempt.rid for assign in p.all(Assign)] == ["r1", "r2"]


async def test_who_was_refused_for_lack_of_room_goes_before_those_who_came_later() -> None:
    """What the gateway knew of the worker's room was out of date; that costs nobody the place."""
    p, d = FakeWorker("prefill", "p0"), FakeWorker("decode", "d0")
    async with started(Bench()) as bench:
        await bench.add(p, d)
        for rid in ("r1", "r2"):
            bench.door.submit(bench.request(rid))
            bench.clock.advance(0.01)
        p.load = FULL
        for rid in ("r2", "r1"):
            p.say(Refuse(Attempt(rid, 0), p.incarnation, "no_room"))
        bench.door.submit(bench.request("r3"))
        await settle()
        assert await bench.backlog.length() == 1
        has_room(p, 900)
        bench.request_clock.tick()
        assert [assign.work.attempt.rid for assign in p.all(Assign)] == ["r1", "r2", "r1", "r2"]
        assert await pop(bench, p) == "r3"


async def test_a_long_prompt_is_not_starved_by_short_ones() -> None:
    p, d = workers()
    async with started(Bench()) as bench:
        await bench.add(p, d)
        bench.door.submit(bench.request("long", num_prompt=600))
        bench.door.submit(bench.request("short", num_prompt=20))
        await settle()
        has_room(p, 100)
        await pop(bench, p)
        await pop(bench, p)
        assert not p.all(Assign)
        has_room(p, 700)
        bench.clock.advance(0.1)
        bench.request_clock.tick()
        assert [assign.work.attempt.rid for assign in p.all(Assign)] == ["long", "short"]


async def test_who_would_wait_too_long_is_refused_and_comes_back() -> None:
    """One leaves the line every 0.6 s or so: whoever has three before it waits for 1.9 s."""
    p, d = workers()
    async with started(Bench(max_backlog=100, max_wait_s=1.8)) as bench:
        await bench.add(p, d)
        leave_one_each(bench, p, 0.6, num_left=2)
        bench.door.submit(bench.request("accepted"))
        retry_s = refused(bench, "refused", num_prompt=33)
        bench.clock.advance(retry_s)
        bench.door.submit(bench.request("refused", num_prompt=33))
        assert bench.door.status()["requests"] == {"live": LEAST_ENDS + 4}


async def test_of_a_line_that_few_have_left_nothing_is_foretold() -> None:
    """They may all leave together in a moment."""
    p, d = workers()
    async with started(Bench(max_backlog=100, max_wait_s=5.0)) as bench:
        await bench.add(p, d)
        for number in range(20):
            bench.door.submit(bench.request(f"r{number}"))
            bench.clock.advance(3.0)
        assert bench.door.status()["requests"] == {"live": 20}


async def test_a_full_backlog_is_429() -> None:
    p, d = workers()
    async with started(Bench(max_backlog=2)) as bench:
        await bench.add(p, d)
        for rid in ("r1", "r2"):
            bench.door.submit(bench.request(rid))
        bench.clock.advance(3.0)
        with pytest.raises(OverloadedError) as refused:
            bench.door.submit(bench.request("r3"))
        assert (refused.value.status, refused.value.retry_after_s) == (429, 3.0)
        assert bench.door.status()["requests"] == {"live": 2}


async def test_a_refused_client_finds_a_place_when_it_was_told_to_come() -> None:
    p, d = workers()
    async with started(Bench(max_backlog=2)) as bench:
        await bench.add(p, d)
        for rid in ("r1", "r2"):
            bench.door.submit(bench.request(rid))
        bench.clock.advance(3.0)
        told_s = [refused(bench, "early", num_prompt=41), refused(bench, "late", num_prompt=42)]
        assert told_s == [3.0, 6.0]
        await settle()
        bench.clock.advance(3.0)
        has_room(p, 40)
        await pop(bench, p)
        assert len(p.all(Assign)) == 1
        assert refused(bench, "new", num_prompt=43) > 3.0
        assert refused(bench, "too-soon", num_prompt=42) > 3.0
        generation = bench.door.submit(bench.request("again", num_prompt=41))
        await settle()
        assert generation.accepted


async def test_a_promise_holds_though_the_line_did_not_move() -> None:
    p, d = workers()
    async with started(Bench(max_backlog=2)) as bench:
        await bench.add(p, d)
        for rid in ("r1", "r2"):
            bench.door.submit(bench.request(rid))
        bench.clock.advance(3.0)
        bench.clock.advance(refused(bench, "r3", num_prompt=41))
        bench.door.submit(bench.request("r3", num_prompt=41))
        await settle()
        assert bench.door.status()["requests"] == {"live": 3}
        has_room(p, 1000)
        bench.clock.advance(2.0)
        bench.request_clock.tick()
        assert [assign.work.attempt.rid for assign in p.all(Assign)] == ["r1", "r2", "r3"]


async def test_once_there_is_room_nobody_waits_for_those_who_never_returned() -> None:
    p, d = workers()
    async with started(Bench(max_backlog=2)) as bench:
        await bench.add(p, d)
        for rid in ("r1", "r2"):
            bench.door.submit(bench.request(rid))
        bench.clock.advance(3.0)
        for number in range(15):
            refused(bench, f"gone-{number}", num_prompt=41 + number)
        has_room(p, 10_000)
        bench.clock.advance(1.0)
        bench.request_clock.tick()
        bench.door.submit(bench.request("r3"))
        has_room(p, 0)
        for rid in ("r4", "r5"):
            bench.door.submit(bench.request(rid))
        assert refused(bench, "r6", num_prompt=40) < 10.0


async def test_a_place_kept_for_nobody_turns_no_client_away_at_the_cap() -> None:
    """And whoever was told to come goes beyond the cap, but not without end."""
    p, d = FakeWorker("prefill", "p0"), FakeWorker("decode", "d0")
    async with started(Bench(max_backlog=4, max_live_requests=4)) as bench:
        await bench.add(p, d)
        for rid in ("r1", "r2", "r3", "r4"):
            bench.door.submit(bench.request(rid))
        told_s = [refused(bench, "x", num_prompt=41 + number) for number in range(3)]
        bench.door.cancel("r1", 0)
        await settle()
        bench.clock.advance(max(told_s))
        bench.door.submit(bench.request("r5"))
        assert refused(bench, "r6", num_prompt=40) > 0
        for number in range(2):
            bench.door.submit(bench.request(f"back-{number}", num_prompt=41 + number))
        assert bench.door.status()["requests"] == {"live": 6}
        assert refused(bench, "back-2", num_prompt=43) > 0


async def test_a_backlog_that_others_filled_ends_the_request_with_429() -> None:
    p, d = workers()
    async with started(Bench(max_backlog=2)) as bench:
        await bench.add(p, d)
        bench.backlog._max_length = 0
        generation = bench.door.submit(bench.request())
        await settle()
        with pytest.raises(OverloadedError):
            await anext(generation)


async def test_a_retry_outlives_a_full_backlog() -> None:
    """Its client reads already: it waits in memory until there is room."""
    p, d = FakeWorker("prefill", "p0"), FakeWorker("decode", "d0")
    async with started(Bench(max_backlog=2)) as bench:
        await bench.add(p, d)
        bench.door.submit(bench.request())
        bench.backlog._max_length = 0
        p.load = FULL
        p.start()
        p.say(Handback(Attempt("r1", 0), p.incarnation, "kv_pressure"))
        await settle()
        assert bench.door.status()["requests"] == {"live": 1}
        has_room(p, 900)
        bench.clock.advance(1.1)
        bench.request_clock.tick()
        assert p.last(Assign).work.attempt.epoch == 1


async def test_who_was_in_the_backlog_once_is_not_refused_later() -> None:
    """Redis lost the backlog and others have filled it since."""
    p, d = workers()
    async with started(Bench()) as bench:
        await bench.add(p, d)
        bench.door.submit(bench.request())
        await settle()
        await bench.backlog.cancel("r1")
        bench.backlog._max_length = 0
        bench.clock.advance(REPEAT_PUT_S)
        p.say(Pong(1, FULL))
        bench.request_clock.tick()
        await settle()
        assert bench.door.status()["requests"] == {"live": 1}


async def test_what_a_popper_lost_is_put_again_at_its_place() -> None:
    p, d = workers()
    async with started(Bench()) as bench:
        await bench.add(p, d)
        for rid in ("r1", "r2"):
            bench.door.submit(bench.request(rid))
        await settle()
        assert await bench.backlog.pop() is not None
        bench.clock.advance(REPEAT_PUT_S)
        p.say(Pong(1, FULL))
        bench.request_clock.tick()
        await settle()
        assert getattr(await bench.backlog.pop(), "rid", "") == "r1"


async def test_what_the_backlog_lost_is_placed_by_its_owner() -> None:
    p, d = workers()
    async with started(Bench()) as bench:
        await bench.add(p, d)
        bench.door.submit(bench.request())
        await settle()
        assert await bench.backlog.pop() is not None
        has_room(p, 900)
        bench.request_clock.tick()
        assert not p.all(Assign)
        bench.clock.advance(1.1)
        bench.request_clock.tick()
        assert p.last(Assign).work.attempt.rid == "r1"


async def test_a_request_that_left_is_not_in_the_backlog_and_not_assigned() -> None:
    p, d = workers()
    async with started(Bench()) as bench:
        await bench.add(p, d)
        generation = bench.door.submit(bench.request())
        await settle()
        generation.cancel()
        await settle()
        assert await bench.backlog.length() == 0
        p.say(Pull("r1", p.incarnation))
        assert p.last(Cancel).attempt.rid == "r1"
        assert not p.all(Assign)


async def test_a_pull_that_crossed_its_own_assignment_harms_nothing() -> None:
    """The owner placed the request on the very worker that had just popped it."""
    p, d = workers()
    async with started(Bench()) as bench:
        await bench.add(p, d)
        bench.door.submit(bench.request())
        await settle()
        entry = await bench.backlog.pop()
        has_room(p, 900)
        bench.clock.advance(1.1)
        bench.request_clock.tick()
        assert p.last(Assign).work.attempt.rid == "r1"
        assert entry is not None
        p.say(Pull(entry.rid, p.incarnation))
        assert not p.all(Cancel)


async def test_an_idle_worker_takes_a_prompt_longer_than_its_room() -> None:
    p, d = FakeWorker("prefill", "p0"), FakeWorker("decode", "d0")
    p.load = Load(64, 0, 0, 0, 100, 100, 0, 0)
    async with started(Bench()) as bench:
        await bench.add(p, d)
        bench.door.submit(bench.request("r1", num_prompt=500))
        bench.door.submit(bench.request("r2", num_prompt=20))
        bench.door.submit(bench.request("r3", num_prompt=20))
        assert [assign.work.attempt.rid for assign in p.all(Assign)] == ["r1", "r2"], "half is left"


async def fill(bench: Bench, gateway_incarnation: str) -> None:
    for number in range(bench.settings.limits.max_backlog):
        await bench.backlog.put(BacklogEntry(f"other{number}", gateway_incarnation, "t", 5))


async def test_a_full_backlog_makes_the_workers_pop() -> None:
    """Nobody may own what fills it; while nobody of ours waits, nobody would look."""
    p, d = workers()
    async with started(Bench()) as bench:
        bench.beats.add("g2.other")
        await bench.add(p, d)
        await fill(bench, "g2.other")
        generation = bench.door.submit(bench.request())
        with pytest.raises(OverloadedError, match="too many wait"):
            await anext(aiter(generation))
        assert p.last(Ping).num_backlogged == 1
        bench.clock.advance(FULL_S)
        bench.links.ping_all()
        assert p.last(Ping).num_backlogged == 0


async def test_what_a_dead_gateway_left_in_the_backlog_keeps_nobody_out() -> None:
    p, d = workers()
    async with started(Bench()) as bench:
        await bench.add(p, d)
        await fill(bench, "g2.dead")
        bench.door.submit(bench.request())
        await settle()
        assert await bench.backlog.length() == 1
        assert p.last(Ping).num_backlogged == 1


async def test_a_cancel_that_redis_was_away_for_is_repeated() -> None:
    p, d = workers()
    async with started(Bench()) as bench:
        await bench.add(p, d)
        for rid in ("r1", "r2"):
            bench.door.submit(bench.request(rid))
        await settle()
        bench.backlog.away = True
        for rid in ("r1", "r2"):
            bench.door.cancel(rid, 0)
        await settle()
        assert await bench.backlog.length() == 2
        bench.backlog.away = False
        bench.request_clock.tick()
        await settle()
        assert await bench.backlog.length() == 0
