"""What keeps a request alive at its worker, and where a prompt goes when links are slow."""

from dataclasses import replace

import pytest

from shared.protocol import Assign, Attempt, Cancel, Incoming, Pong
from tests.unit.gateway.owner.gateway_bench import Bench, FakeWorker, started

pytestmark = pytest.mark.anyio


def pair() -> tuple[FakeWorker, FakeWorker]:
    return FakeWorker("prefill", "p0"), FakeWorker("decode", "d0")


async def test_slow_is_not_dead_as_long_as_a_worker_names_progress() -> None:
    p, d = pair()
    q = FakeWorker("prefill", "p1")
    async with started(Bench()) as bench:
        await bench.add(p, q, d)
        bench.door.submit(bench.request())
        p.start()
        for _ in range(10):
            bench.clock.advance(4.0)
            d.say(Pong(0, d.load, advanced=(Attempt("r1", 0),)))
            bench.request_clock.tick()
        assert not q.all(Assign)
        for late in (Attempt("r1", 7), Attempt("other", 0)):
            bench.clock.advance(4.0)
            d.say(Pong(0, d.load, advanced=(late,)))
        bench.request_clock.tick()
        assert q.last(Assign).work.attempt.epoch == 1
        assert [cancel.reason for cancel in p.all(Cancel)] == ["stalled"]


async def test_a_worker_whose_engine_stands_still_leaves_the_routing_and_proves_itself() -> None:
    p, d = pair()
    q = FakeWorker("prefill", "p1")
    async with started(Bench()) as bench:
        await bench.add(p, q, d)
        bench.door.submit(bench.request())
        p.say(Pong(0, replace(p.load, stalled=True)))
        bench.request_clock.tick()
        assert q.last(Assign).work.attempt == Attempt("r1", 1), "at once"
        states = {each["id"]: each["state"] for each in bench.door.status()["workers"]}
        assert states == {"p0": "stalled", "p1": "ready", "d0": "ready"}
        bench.clock.advance(1.5)
        bench.door.submit(bench.request("r2"))
        assert not [one for one in p.all(Assign) if one.work.attempt.rid == "r2"]
        q.say(Pong(1, replace(q.load, room_tokens=0, queued_tokens=100_000)))
        p.say(Pong(1, p.load))
        for rid in ("r3", "r4"):
            bench.door.submit(bench.request(rid))
        tried = [one.work.attempt.rid for one in p.all(Assign)]
        assert tried == ["r1", "r3"], "one request is the probe"


async def test_a_worker_that_lost_the_request_cannot_keep_it_alive() -> None:
    p, d = pair()
    q = FakeWorker("prefill", "p1")
    async with started(Bench()) as bench:
        await bench.add(p, q, d)
        bench.door.submit(bench.request())
        for _ in range(2):
            bench.clock.advance(4.0)
            q.say(Pong(0, q.load, advanced=(Attempt("r1", 0),)))
        bench.request_clock.tick()
        assert q.last(Assign).work.attempt.epoch == 1


async def test_what_the_link_cannot_carry_is_computed_on_decode_with_its_reason() -> None:
    p, d = pair()
    async with started(Bench()) as bench:
        await bench.add(p, d)
        d.say(Pong(0, replace(d.load, incoming=(Incoming(p.incarnation, 4000, 1000.0),))))
        bench.door.submit(bench.request())
        assign = d.last(Assign)
        assert (assign.mode, assign.reason) == ("local", "slow_link")
        d.say(Pong(1, d.load))
        bench.door.submit(bench.request("r2"))
        assert p.last(Assign).work.attempt.rid == "r2"
        p.say(Pong(1, replace(p.load, unpulled_tokens=4000)))
        bench.door.submit(bench.request("r3"))
        assert d.last(Assign).work.attempt.rid == "r3"
        d.say(Pong(2, replace(d.load, unreserved_tokens={p.incarnation: 4000})))
        bench.door.submit(bench.request("r4"))
        assert p.last(Assign).work.attempt.rid == "r4", "decode is full, its link is idle"


async def test_a_worker_that_decodes_much_slower_gets_no_new_request() -> None:
    workers = [FakeWorker("decode", f"d{number}") for number in range(3)]
    async with started(Bench(topology="agg")) as bench:
        await bench.add(*workers)
        for number in range(3):
            bench.door.submit(bench.request(f"r{number}", max_tokens=100))
            for worker in workers:  # the next one goes to another
                busy = replace(worker.load, running=len(worker.all(Assign)))
                worker.say(Pong(0, busy))
        assert [len(worker.all(Assign)) for worker in workers] == [1, 1, 1]
        for tick in range(40):
            bench.clock.advance(0.25)
            for worker in workers[:2]:
                worker.tokens(tick, 5)
            if tick % 4 == 0:
                workers[2].tokens(tick // 4, 5)
            bench.request_clock.tick()
        for number in range(3, 9):
            bench.door.submit(bench.request(f"r{number}"))
        assert [len(worker.all(Assign)) for worker in workers][2] == 1
        assert "d2 decodes much slower" in bench.door.trouble()


async def test_the_only_worker_that_stalls_keeps_its_requests_and_gets_those_that_wait() -> None:
    d = FakeWorker("decode", "d0")
    async with started(Bench(topology="agg")) as bench:
        await bench.add(d)
        bench.door.submit(bench.request())
        d.say(Pong(0, replace(d.load, stalled=True)))
        bench.request_clock.tick()
        assert not d.all(Cancel), "there is nobody else"
        assert bench.door.ready()
        bench.door.submit(bench.request("r2"))
        assert [one.work.attempt.rid for one in d.all(Assign)] == ["r1"]
        d.say(Pong(1, d.load))
        bench.clock.advance(1.0)
        bench.request_clock.tick()
        assert [one.work.attempt.rid for one in d.all(Assign)] == ["r1", "r2"]


async def test_an_engine_that_goes_on_has_not_died() -> None:
    workers = [FakeWorker("decode", f"d{number}") for number in range(2)]
    async with started(Bench(topology="agg")) as bench:
        await bench.add(*workers)
        bench.door.submit(bench.request())
        machine = bench.live("r1").machine
        stalled = next(worker for worker in workers if worker.all(Assign))
        stalled.say(Pong(0, replace(stalled.load, stalled=True)))
        bench.request_clock.tick()
        assert (machine.epoch, machine.strikes.num_failures) == (1, 1)
        assert len(machine.strikes) == 1
        stalled.say(Pong(0, stalled.load))
        bench.request_clock.tick()
        assert len(machine.strikes) == 0


async def test_a_wait_for_a_hand_over_is_not_the_pace_of_who_takes_it() -> None:
    p, d = pair()
    async with started(Bench()) as bench:
        await bench.add(p, d)
        bench.door.submit(bench.request(max_tokens=100))
        p.start()
        p.tokens(0, 5)
        bench.clock.advance(3.0)
        d.tokens(1, 6)
        bench.clock.advance(0.5)
        d.tokens(2, 7)
        gaps_ms = {worker.worker_id: worker.gaps for worker in bench.links.workers()}
        now_s = bench.clock.monotonic_s()
        assert [gap for gap in gaps_ms["d0"].last_ms(now_s) if gap is not None] == [500.0]
        assert not any(gaps_ms["p0"].last_ms(now_s))
