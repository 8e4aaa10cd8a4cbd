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
