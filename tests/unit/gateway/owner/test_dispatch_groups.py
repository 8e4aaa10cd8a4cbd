"""Choices of one group as their owner sees them: accepted, routed together, told together."""

import asyncio
from dataclasses import replace

import pytest

from services.gateway.answer.receipt_field import answer_receipt
from services.gateway.owner.door import DRAIN_POLL_S
from services.gateway.owner.generation import GenerateRequest, Group
from shared.errors import OverloadedError
from shared.message_parts.span import Span
from shared.protocol import Assign, Attempt, Receive, Spans, Tokens
from shared.telemetry import attributes as names
from tests.unit.gateway.owner.gateway_bench import FULL, IDLE, Bench, FakeWorker, settle, started

pytestmark = pytest.mark.anyio
GROUP = Group("g", num_choices=9, num_prompt_tokens=40)


def choice(bench: Bench, index: int, **fields: object) -> GenerateRequest:
    request = bench.request(f"r{index}", max_tokens=2)
    fields = {"group": GROUP, "choice": index, **fields}
    return replace(request, **fields)  # type: ignore[arg-type]


async def test_accepted_means_recorded_and_on_a_worker_or_in_the_backlog() -> None:
    p, d = FakeWorker("prefill", "p0"), FakeWorker("decode", "d0")
    async with started(Bench()) as bench:
        await bench.add(p, d)
        placed = bench.door.submit(choice(bench, 0))
        assert not placed.accepted
        await settle()
        assert placed.accepted
        p.load = FULL
        p.say(Tokens(p.incarnation, (), FULL))
        waiting = bench.door.submit(choice(bench, 1))
        assert not waiting.accepted
        await settle()
        assert waiting.accepted
        bench.records.refuses = True
        refused = bench.door.submit(choice(bench, 2, group=Group("h", 9, 40)))
        await settle()
        assert not refused.accepted
        assert isinstance(refused.failure, OverloadedError)


async def test_a_full_backlog_refuses_what_was_not_accepted() -> None:
    """It is recorded, but it has no place: that is no acceptance."""
    p, d = FakeWorker("prefill", "p0"), FakeWorker("decode", "d0")
    p.load = FULL
    async with started(Bench(max_backlog=4)) as bench:
        await bench.add(p, d)
        bench.backlog._max_length = 0
        late = bench.door.submit(choice(bench, 0))
        await settle()
        assert not late.accepted
        assert isinstance(late.failure, OverloadedError)


async def test_a_follower_goes_where_the_prompt_was_computed() -> None:
    """Although the prompt is too short for the prefix index and another worker is as idle."""
    workers = [FakeWorker("prefill", f"p{at}") for at in range(4)]
    d = FakeWorker("decode", "d0")
    async with started(Bench()) as bench:
        await bench.add(*workers, d)
        leader = bench.door.submit(choice(bench, 0))
        await settle()
        home = next(worker for worker in workers if worker.all(Assign))
        home.start()
        home.tokens(0, 10)
        await settle()
        await anext(leader)
        assert leader.prompt_incarnation == home.incarnation
        for index in range(1, 4):
            bench.door.submit(choice(bench, index, prefer_incarnation=home.incarnation))
        assert [len(worker.all(Assign)) for worker in workers if worker is not home] == [0, 0, 0]
        assert len(home.all(Assign)) == 4
        receipt = bench.door.receipt("r3")
        assert receipt is not None
        assert "preferred" in receipt["route"]
        assert "uncached=8 " in receipt["route"]


async def test_a_follower_is_part_of_what_was_accepted() -> None:
    """Its leader lives, so it waits for a worker as a retry does, and may finish in a drain."""
    p, d = FakeWorker("prefill", "p0"), FakeWorker("decode", "d0")
    async with started(Bench()) as bench:
        await bench.add(p, d)
        bench.door.submit(choice(bench, 0))
        p.start()
        p.tokens(0, 10)
        d.die()
        await settle()
        follower = bench.door.submit(choice(bench, 1, prefer_incarnation=p.incarnation))
        with pytest.raises(OverloadedError):
            bench.door.submit(choice(bench, 2))
        await bench.add(FakeWorker("decode", "d1"))
        draining = asyncio.ensure_future(bench.door.drain(60.0))
        await settle()
        assert follower.failure is None
        late = bench.door.submit(choice(bench, 3, prefer_incarnation=p.incarnation))
        assert late.failure is None
        assert {assign.work.attempt.rid for assign in p.all(Assign)} >= {"r1", "r3"}
        draining.cancel()


async def test_what_comes_in_a_drain_is_served_and_what_comes_after_it_refused() -> None:
    """A connection that was kept open may bring one more request; follow-ups always may."""
    d = FakeWorker("decode", "d0")
    open_connections = ["one"]
    async with started(Bench()) as bench:
        await bench.add(d)
        draining = asyncio.ensure_future(bench.door.drain(60.0, lambda: bool(open_connections)))
        await asyncio.sleep(3 * DRAIN_POLL_S)
        assert not draining.done() and not bench.door.ready() and bench.door.draining
        late = bench.door.submit(bench.request("late"))
        open_connections.clear()
        await asyncio.sleep(3 * DRAIN_POLL_S)
        assert not draining.done() and late.failure is None, "it lives"
        bench.door.cancel("late", 0)
        await asyncio.wait_for(draining, 5.0)
        with pytest.raises(OverloadedError, match="shutting down"):
            bench.door.submit(bench.request())


async def test_a_drain_waits_for_the_choices_that_follow_one_that_has_ended() -> None:
    """Between two choices of a group nothing lives; the request goes on all the same."""
    p, d = FakeWorker("prefill", "p0"), FakeWorker("decode", "d0")
    async with started(Bench()) as bench:
        await bench.add(p, d)
        bench.door.submit(choice(bench, 0, group=Group("g", 2, 40)))
        p.start()
        p.tokens(0, 10)
        d.tokens(0, 10)
        d.tokens(1, 11, reason="length")
        await settle()
        draining = asyncio.ensure_future(bench.door.drain(60.0))
        await asyncio.sleep(3 * DRAIN_POLL_S)
        assert not draining.done()
        follower = bench.door.submit(
            choice(bench, 1, group=Group("g", 2, 40), prefer_incarnation=p.incarnation)
        )
        p.start()
        p.tokens(0, 10)
        d.tokens(0, 10)
        d.tokens(1, 11, reason="length")
        await asyncio.wait_for(draining, 5.0)
        assert follower.failure is None


async def test_a_follower_waits_although_the_backlog_is_full() -> None:
    p, d = FakeWorker("prefill", "p0"), FakeWorker("decode", "d0")
    p.load = FULL
    async with started(Bench(max_backlog=1)) as bench:
        await bench.add(p, d)
        bench.door.submit(choice(bench, 0))
        await settle()
        with pytest.raises(OverloadedError):
            bench.door.submit(choice(bench, 1))
        follower = bench.door.submit(choice(bench, 2, prefer_incarnation=p.incarnation))
        await settle()
        assert follower.failure is None
        p.say(Tokens(p.incarnation, (), IDLE))
        bench.clock.advance(2.0)
        bench.request_clock.tick()
        assert [assign.work.attempt.rid for assign in p.all(Assign)] == ["r0", "r2"]
        await settle()
        assert follower.accepted


async def ended_group(bench: Bench, p: FakeWorker, d: FakeWorker) -> None:
    """Two choices of one prompt, one after the other."""
    received_ns = bench.clock.wall_ns()
    for index in range(2):
        bench.door.submit(choice(bench, index, received_ns=received_ns))
        bench.clock.advance(0.1)
        p.start(num_cached_tokens=16 * index)
        p.tokens(0, 10)
        assert d.last(Receive)
        d.tokens(0, 10)
        d.tokens(1, 11, reason="length")
        await settle()


async def test_the_receipt_of_a_group_lists_and_sums_its_members() -> None:
    p, d = FakeWorker("prefill", "p0"), FakeWorker("decode", "d0")
    async with started(Bench()) as bench:
        await bench.add(p, d)
        await ended_group(bench, p, d)
        bench.door.submit(choice(bench, 2, prompt=1))
        receipt = bench.door.receipt("g")
        assert receipt is not None
        assert (receipt["state"], receipt["ended_ns"]) == ("live", 0)
        assert [item["id"] for item in receipt["choices"]] == ["r0", "r1", "r2"]
        assert [item["state"] for item in receipt["choices"]] == ["done", "done", "live"]
        assert (receipt["prompt_tokens"], receipt["completion_tokens"]) == (80, 4)
        assert receipt["cached_tokens"] == 0, "what the first choice found, not the second"
        member = bench.door.receipt("r1")
        assert member is not None
        assert (member["group"], member["choice"]) == ("g", 1)
        bench.door.cancel("r2", 0)
        await settle()
        receipt = bench.door.receipt("g")
        assert receipt is not None
        assert receipt["state"] == "cancelled"


async def test_the_critical_path_of_a_group_is_that_of_its_last_choice() -> None:
    p, d = FakeWorker("prefill", "p0"), FakeWorker("decode", "d0")
    async with started(Bench()) as bench:
        await bench.add(p, d)
        begin_ns = bench.clock.wall_ns()
        await ended_group(bench, p, d)
        bodies = [bench.door.receipt(rid) for rid in ("r0", "r1", "g")]
        assert all(body is not None for body in bodies)
        group = dict(bodies[2] or {})
        path = group["critical_path_ms"]
        assert path["shared_prompt"] == pytest.approx(100)
        assert path["total"] == pytest.approx((group["ended_ns"] - begin_ns) / 1e6)
        total = path.pop("total")
        assert sum(path.values()) == pytest.approx(total)
        now_ns = group["ended_ns"] + 5_000_000
        told = answer_receipt(group, now_ns)
        assert told["stages_ms"]["deliver"] == 5.0
        assert told["total_ms"] == pytest.approx(sum(told["stages_ms"].values()))
        assert told["total_ms"] == pytest.approx((now_ns - group["received_ns"]) / 1e6, abs=0.01)
        assert [item["id"] for item in told["choices"]] == ["r0", "r1"]


async def test_a_final_receipt_waits_for_the_workers_last_words() -> None:
    p, d = FakeWorker("prefill", "p0"), FakeWorker("decode", "d0")
    async with started(Bench()) as bench:
        await bench.add(p, d)
        await ended_group(bench, p, d)
        waiting = asyncio.ensure_future(bench.door.final_receipt("g"))
        await settle()
        assert not waiting.done()
        for index in range(2):
            for worker, name in (
                (p, names.SPAN_PREFILL),
                (d, names.SPAN_TRANSFER),
                (d, names.SPAN_DECODE),
            ):
                assert not waiting.done()
                worker.say(
                    Spans(Attempt(f"r{index}", 0), worker.incarnation, (Span(name, 1, 2, 7),))
                )
                await settle()
        async with asyncio.timeout(0.02):
            receipt = await waiting
        assert receipt is not None
        assert receipt["state"] == "done"


async def test_a_final_receipt_does_not_wait_for_ever() -> None:
    p, d = FakeWorker("prefill", "p0"), FakeWorker("decode", "d0")
    async with started(Bench()) as bench:
        await bench.add(p, d)
        await ended_group(bench, p, d)
        async with asyncio.timeout(1.0):
            receipt = await bench.door.final_receipt("r0")
        assert receipt is not None
        assert receipt["stages"] != []
