"""--on-kv-pressure reject refuses what no worker has KV blocks for, and nothing that was taken."""

from dataclasses import replace

import pytest

from services.gateway.owner.requests import NO_BLOCKS
from shared.errors import OverloadedError
from shared.protocol import Assign, Attempt, Fail, Pong, Receive, Refuse, Start, TokenRun, Tokens
from shared.settings.groups import KVPressure
from shared.state.kv_events import KVSnapshot
from tests.unit.gateway.owner.gateway_bench import FULL, IDLE, Bench, FakeWorker, settle, started

pytestmark = pytest.mark.anyio


def agg(policy: KVPressure = "reject") -> Bench:
    return Bench(topology="agg", on_kv_pressure=policy)


def two() -> tuple[FakeWorker, FakeWorker]:
    return FakeWorker("decode", "a0"), FakeWorker("decode", "a1")


def refuses(worker: FakeWorker, rid: str, epoch: int) -> None:
    worker.say(Refuse(Attempt(rid, epoch), worker.incarnation, "no_room", "no blocks"))


def has_blocks(worker: FakeWorker, num_free: int, **others: object) -> None:
    load = replace(IDLE, free=num_free, held=IDLE.total - num_free, cached=0)
    worker.load = replace(load, **others)  # type: ignore[arg-type]
    worker.say(Pong(1, worker.load))


async def test_what_one_worker_refuses_goes_to_another_and_then_back_to_its_client() -> None:
    async with started(agg()) as bench:
        a, b = two()
        await bench.add(a, b)
        generation = bench.door.submit(bench.request("r1"))
        await settle()
        first, second = (a, b) if a.all(Assign) else (b, a)
        assert not first.last(Assign).work.accepted
        refuses(first, "r1", 0)
        first.say(Pong(2, first.load))  # room for prompts it has
        assert second.last(Assign).work.attempt == ("r1", 1)
        assert not generation.accepted, "its client may still be refused"
        refuses(second, "r1", 1)
        with pytest.raises(OverloadedError, match=NO_BLOCKS) as error:
            await anext(aiter(generation))
        assert error.value.status == 429
        assert error.value.retry_after_s > 0
        assert not len(bench.requests)
        assert (len(a.all(Assign)), len(b.all(Assign))) == (1, 1)


async def test_what_a_worker_has_begun_is_refused_by_none() -> None:
    async with started(agg()) as bench:
        a, b = two()
        await bench.add(a, b)
        generation = bench.door.submit(bench.request("r1"))
        await settle()
        first, second = (a, b) if a.all(Assign) else (b, a)
        first.say(Start(Attempt("r1", 0), first.incarnation, 0, first.load))
        assert generation.accepted
        first.say(Fail(Attempt("r1", 0), first.incarnation, "internal", "it broke"))
        bench.clock.advance(5.0)
        await settle()
        bench.request_clock.tick()
        again = second.all(Assign) or first.all(Assign)[1:]
        assert again[0].work.accepted


async def test_what_was_taken_and_lost_before_its_start_is_refused_by_none() -> None:
    async with started(agg()) as bench:
        a, b = two()
        await bench.add(a, b)
        bench.door.submit(bench.request("r1"))
        await settle()
        first = a if a.all(Assign) else b
        first.say(Fail(Attempt("r1", 0), first.incarnation, "internal", "it broke"))
        assert bench.live("r1").work.accepted


@pytest.mark.parametrize("policy", ["preempt", "queue"])
async def test_with_other_policies_nothing_may_be_refused(policy: KVPressure) -> None:
    async with started(agg(policy)) as bench:
        a, b = two()
        await bench.add(a, b)
        for worker in (a, b):
            has_blocks(worker, 1)
        generation = bench.door.submit(bench.request("r1", num_prompt=160))
        await settle()
        assert (a.all(Assign) + b.all(Assign))[0].work.accepted
        assert generation.accepted


async def test_what_is_too_much_for_each_decode_worker_is_refused_at_the_door() -> None:
    """40 tokens and 9 more, the last of which is never fed back: three blocks."""
    async with started(Bench(on_kv_pressure="reject")) as bench:
        p, d = FakeWorker("prefill", "p0"), FakeWorker("decode", "d0")
        await bench.add(p, d)
        has_blocks(d, 2)
        with pytest.raises(OverloadedError, match=NO_BLOCKS):
            bench.door.submit(bench.request("r1", max_tokens=9))
        assert not p.all(Assign)
        has_blocks(d, 3)
        bench.door.submit(bench.request("r1", max_tokens=9))
        await settle()
        assert p.last(Assign).work.attempt.rid == "r1"


async def test_only_what_decode_workers_hold_of_a_prefix_needs_no_blocks_there() -> None:
    """256 tokens and 9 more: 17 blocks, of which a prefix is 16."""
    async with started(Bench(on_kv_pressure="reject")) as bench:
        p, d = FakeWorker("prefill", "p0"), FakeWorker("decode", "d0")
        await bench.add(p, d)
        bench.door.submit(bench.request("r0", num_prompt=256, max_tokens=9))
        prefix = frozenset(bench.live("r0").block_hashes)
        bench.door.cancel("r0", 0)
        has_blocks(d, 5)
        for worker, fits in ((p, False), (d, True)):
            bench.index.load(KVSnapshot(worker.incarnation, 1, prefix))
            if fits:
                bench.door.submit(bench.request("r1", num_prompt=256, max_tokens=9))
                continue
            with pytest.raises(OverloadedError, match=NO_BLOCKS):
                bench.door.submit(bench.request("r1", num_prompt=256, max_tokens=9))


async def test_what_prefill_workers_compute_has_its_blocks_at_decode() -> None:
    async with started(Bench(on_kv_pressure="reject")) as bench:
        p, d = FakeWorker("prefill", "p0"), FakeWorker("decode", "d0")
        await bench.add(p, d)
        has_blocks(d, 5)
        bench.door.submit(bench.request("r1", max_tokens=9))
        with pytest.raises(OverloadedError, match=NO_BLOCKS):
            bench.door.submit(bench.request("r2", max_tokens=9))
        p.say(Start(Attempt("r1", 0), p.incarnation, 0, p.load))
        assert d.last(Receive).work.accepted
        has_blocks(d, 5, unreserved_tokens={p.incarnation: 48})
        with pytest.raises(OverloadedError, match=NO_BLOCKS):
            bench.door.submit(bench.request("r3", max_tokens=9))
        has_blocks(d, 3)
        with pytest.raises(OverloadedError, match=NO_BLOCKS):
            bench.door.submit(bench.request("r4", max_tokens=9))
        d.say(Tokens(d.incarnation, (TokenRun("r1", 0, 0, (5,)),), d.load))
        bench.door.submit(bench.request("r5", max_tokens=9))


async def test_a_refusal_for_lack_of_blocks_leaves_the_worker_its_room() -> None:
    async with started(agg()) as bench:
        (a, _) = two()
        await bench.add(a)
        bench.door.submit(bench.request("large", num_prompt=160))
        await settle()
        refuses(a, "large", 0)
        bench.door.submit(bench.request("small", num_prompt=8))
        assert a.last(Assign).work.attempt.rid == "small"


async def test_a_worker_that_computes_prompts_and_decodes_says_itself_what_it_has() -> None:
    """It has no block left, and would take those of later priorities."""
    async with started(agg()) as bench:
        (a, _) = two()
        await bench.add(a)
        has_blocks(a, 0)
        bench.door.submit(bench.request("r1", priority=0))
        await settle()
        assert a.last(Assign).work.attempt.rid == "r1"


@pytest.mark.parametrize(("policy", "chosen"), [("preempt", 0), ("queue", 1), ("reject", 1)])
async def test_decode_is_where_all_blocks_are_that_are_waited_for(
    policy: KVPressure, chosen: int
) -> None:
    """The first decode worker has the fewest sequences, and blocks for the prompt alone."""
    async with started(Bench(on_kv_pressure=policy)) as bench:
        p = FakeWorker("prefill", "p0")
        decode = FakeWorker("decode", "d0"), FakeWorker("decode", "d1")
        await bench.add(p, *decode)
        has_blocks(decode[0], 4)
        has_blocks(decode[1], 50, running=5)
        bench.door.submit(bench.request("r1", max_tokens=60))
        await settle()
        p.start()
        assert [len(worker.all(Receive)) for worker in decode] == [1 - chosen, chosen]


async def test_clients_refused_for_lack_of_blocks_are_spread_and_keep_no_places() -> None:
    async with started(Bench(max_backlog=4, on_kv_pressure="reject")) as bench:
        p, d = FakeWorker("prefill", "p0"), FakeWorker("decode", "d0")
        p.load = FULL
        await bench.add(p, d)
        has_blocks(d, 0)
        after_s = []
        for number in range(3):
            with pytest.raises(OverloadedError, match=NO_BLOCKS) as error:
                bench.door.submit(bench.request(f"r{number}"))
            after_s.append(error.value.retry_after_s)
        assert 0 < after_s[0] < after_s[1] < after_s[2]
        bench.clock.advance(after_s[2])
        has_blocks(d, 100)
        for number in range(3, 7):
            bench.door.submit(bench.request(f"r{number}", num_prompt=41))
        assert len(bench.requests) == 4
