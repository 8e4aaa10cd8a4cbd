"""Requests of an earlier priority go first wherever requests wait, and wait for no later ones."""

import math
from dataclasses import replace

import pytest

from shared.errors import OverloadedError
from shared.kv.block_hash import chain_hashes
from shared.protocol import Assign, Attempt, Pong, Refuse
from shared.state.kv_events import KVSnapshot
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


async def test_a_newcomer_of_an_earlier_priority_goes_before_those_who_wait() -> None:
    p, d = workers()
    async with started(Bench()) as bench:
        await bench.add(p, d)
        for rid, priority in (("bulk", 6), ("normal", 3), ("urgent", 1)):
            bench.door.submit(bench.request(rid, priority=priority))
        await settle()
        has_room(p, 900)
        assert [await pop(bench, p) for _ in range(3)] == ["urgent", "normal", "bulk"]
        works = [assign.work for assign in p.all(Assign)]
        assert [work.attempt.rid for work in works] == ["urgent", "normal", "bulk"]
        assert [work.priority for work in works] == [1, 3, 6]


async def test_without_a_backlog_those_of_an_earlier_priority_are_placed_first() -> None:
    """Nobody pops: the gateway places them itself after a while."""
    p, d = workers()
    async with started(Bench()) as bench:
        await bench.add(p, d)
        for rid, priority in (("bulk", 6), ("urgent", 1)):
            bench.door.submit(bench.request(rid, priority=priority))
        await settle()
        p.load = IDLE
        p.say(Pong(1, IDLE))
        await settle()
        bench.core.requests.place_waiting()
        assert [assign.work.attempt.rid for assign in p.all(Assign)] == ["urgent", "bulk"]


async def test_a_full_line_of_later_ones_keeps_no_earlier_one_out() -> None:
    p, d = workers()
    async with started(Bench(max_backlog=2)) as bench:
        await bench.add(p, d)
        for rid in ("r1", "r2"):
            bench.door.submit(bench.request(rid, priority=6))
        with pytest.raises(OverloadedError):
            bench.door.submit(bench.request("r3", priority=6))
        bench.door.submit(bench.request("r4"))
        await settle()
        assert bench.door.status()["requests"] == {"live": 3}


@pytest.mark.parametrize(("timeout_s", "accepted"), [(1.0, False), (4.0, True), (math.inf, True)])
async def test_a_request_whose_time_ends_before_its_turn_is_refused_at_once(
    timeout_s: float, *, accepted: bool
) -> None:
    """One leaves the line every 0.6 s or so, and it has three before it."""
    p, d = workers()
    async with started(Bench(max_backlog=100)) as bench:
        await bench.add(p, d)
        leave_one_each(bench, p, 0.6, num_left=3)
        request = replace(bench.request("r"), timeout_s=timeout_s)
        if accepted:
            bench.door.submit(request)
            return
        with pytest.raises(OverloadedError, match="before its answer can be whole") as refused:
            bench.door.submit(request)
        assert refused.value.retry_after_s > 0


@pytest.mark.parametrize(
    ("priority", "max_tokens", "place_s", "timeout_s", "accepted"),
    [
        (3, 3, 5.0, 5.9, False),
        (3, 3, 5.0, 6.1, True),
        (2, 3, 5.0, 4.0, True),
        (3, 1, 5.0, 4.0, True),
        (2, 1, 0.0, 0.59, False),
        (2, 1, 0.0, 0.61, True),
    ],
)
async def test_one_that_workers_cannot_begin_in_time_is_refused_at_once(
    priority: int, max_tokens: int, place_s: float, timeout_s: float, *, accepted: bool
) -> None:
    """Its prompt took 1 s in a trial, of which half is believed, and a fifth more is left for it. A
    place in a batch comes free later: one of an earlier priority may be given it sooner, and one
    with one token needs none."""
    p, d = FakeWorker("prefill", "p0"), FakeWorker("decode", "d0")
    p.trial_token_s, d.load = 0.01, replace(IDLE, place_s=place_s)
    async with started(Bench()) as bench:
        await bench.add(p, d)
        request = bench.request(num_prompt=100, max_tokens=max_tokens, priority=priority)
        request = replace(request, timeout_s=timeout_s)
        if accepted:
            bench.door.submit(request)
            return
        with pytest.raises(OverloadedError, match="before its answer can be whole"):
            bench.door.submit(request)


@pytest.mark.parametrize(
    ("waits", "timeout_s", "accepted"),
    [(False, 11.9, False), (False, 12.1, True), (True, 12.1, False), (True, 16.0, True)],
)
async def test_the_tokens_that_it_asks_for_count_at_the_pace_of_its_worker(
    timeout_s: float, *, waits: bool, accepted: bool
) -> None:
    """100 after the first, of 0.1 s each, and a fifth more. Where it waits it has three before it,
    of which one leaves every 0.6 s or so."""
    p, d = workers() if waits else (FakeWorker("prefill", "p0"), FakeWorker("decode", "d0"))
    async with started(Bench(max_backlog=100)) as bench:
        await bench.add(p, d)
        if waits:
            leave_one_each(bench, p, 0.6, num_left=3)
        (link,) = [each for each in bench.links.workers() if each.incarnation == d.incarnation]
        for ago_s in range(3):
            link.gaps.note(bench.clock.monotonic_s() - ago_s, 0.1)
        request = bench.request("r", max_tokens=200)
        sampling = replace(request.sampling, min_tokens=101)
        request = replace(request, sampling=sampling, timeout_s=timeout_s)
        if accepted:
            bench.door.submit(request)
            return
        with pytest.raises(OverloadedError, match="before its answer can be whole"):
            bench.door.submit(request)


async def test_a_worker_whose_batch_is_full_is_not_chosen_for_a_prefix_that_it_has() -> None:
    """Nor is then refused what another one begins at once."""
    full, empty = FakeWorker("decode", "d0"), FakeWorker("decode", "d1")
    full.load = replace(IDLE, place_s=30.0)
    async with started(Bench("agg")) as bench:
        await bench.add(full, empty)
        hashes = tuple(chain_hashes(b"", range(320), 16))
        bench.index.load(KVSnapshot(full.incarnation, 1, frozenset(hashes)))
        request = replace(bench.request(num_prompt=320), block_hashes=hashes, timeout_s=10.0)
        bench.door.submit(request)
        await settle()
        assert empty.all(Assign) and not full.all(Assign)


def _is_full_of(worker: FakeWorker, early_room_tokens: int) -> None:
    worker.load = replace(FULL, early_room_tokens=early_room_tokens)
    worker.say(Pong(1, worker.load))


async def test_what_fills_a_worker_with_later_ones_takes_no_room_of_earlier_ones() -> None:
    p, d = workers()
    async with started(Bench()) as bench:
        await bench.add(p, d)
        _is_full_of(p, 100)
        bench.door.submit(bench.request("bulk", priority=6))
        bench.door.submit(bench.request("quick", num_prompt=60))
        bench.door.submit(bench.request("second", num_prompt=60))  # 40 are left for it
        await settle()
        assert [assign.work.attempt.rid for assign in p.all(Assign)] == ["quick"]


async def test_a_later_one_that_is_refused_keeps_no_earlier_one_out() -> None:
    p, d = FakeWorker("prefill", "p0"), FakeWorker("decode", "d0")
    async with started(Bench()) as bench:
        await bench.add(p, d)
        _is_full_of(p, 100)
        p.load = replace(IDLE, room_tokens=50, early_room_tokens=100, queued_tokens=1)
        p.say(Pong(1, p.load))
        bench.door.submit(bench.request("bulk", priority=6))
        await settle()
        p.say(Refuse(Attempt("bulk", 0), p.incarnation, "no_room"))
        bench.door.submit(bench.request("quick", num_prompt=60))
        await settle()
        assert [assign.work.attempt.rid for assign in p.all(Assign)] == ["bulk", "quick"]


async def test_a_worker_of_an_earlier_release_has_one_room_for_all() -> None:
    p, d = workers()
    async with started(Bench()) as bench:
        await bench.add(p, d)
        p.load = replace(IDLE, room_tokens=50, queued_tokens=1)
        p.say(Pong(1, p.load))
        bench.door.submit(bench.request("quick", num_prompt=40))
        await settle()
        assert [assign.work.attempt.rid for assign in p.all(Assign)] == ["quick"]
