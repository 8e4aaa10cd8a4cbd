"""Long prompts wait for a worker's place for one, and short prompts do not wait for them."""

from dataclasses import replace

import pytest

from shared.protocol import Assign, Attempt, Pong, Refuse
from shared.queue.room import LongPlace
from tests.unit.gateway.owner.gateway_bench import IDLE, Bench, FakeWorker, settle, started
from tests.unit.gateway.owner.test_saturation import pop

pytestmark = pytest.mark.anyio

LONG, SHORT = 300, 20
BUSY = replace(
    IDLE,
    room_tokens=100,
    early_room_tokens=100,
    queued_tokens=900,
    long_place=LongPlace.NONE,
)
"""of 200 tokens of room a long prompt that waits there has half"""


def workers() -> tuple[FakeWorker, FakeWorker]:
    p, d = FakeWorker("prefill", "p0"), FakeWorker("decode", "d0")
    p.room_limit_tokens = 200
    p.load = BUSY
    return p, d


def says(worker: FakeWorker, room_tokens: int, place: LongPlace) -> None:
    worker.load = replace(
        BUSY, room_tokens=room_tokens, early_room_tokens=room_tokens, long_place=place
    )
    worker.say(Pong(1, worker.load))


def assigned(worker: FakeWorker) -> list[str]:
    return [assign.work.attempt.rid for assign in worker.all(Assign)]


async def submit(bench: Bench, *rids: str, tenant: str = "", priority: int = 3) -> None:
    """Long or short by name."""
    for rid in rids:
        num_prompt = LONG if rid.startswith("long") else SHORT
        request = bench.request(rid, num_prompt=num_prompt, priority=priority)
        bench.door.submit(replace(request, tenant=tenant or request.tenant))
    await settle()


async def test_a_short_prompt_does_not_wait_behind_long_ones() -> None:
    p, d = workers()
    async with started(Bench()) as bench:
        await bench.add(p, d)
        await submit(bench, "long1", "long2")
        assert assigned(p) == []
        await submit(bench, "short1", "short2")
        assert assigned(p) == ["short1", "short2"]


async def test_a_long_prompt_takes_the_place_whatever_short_ones_wait_there() -> None:
    """And the next one waits, and half of the room is gone."""
    p, d = workers()
    async with started(Bench()) as bench:
        await bench.add(p, d)
        await submit(bench, "long1", "long2")
        says(p, 0, LongPlace.ANY)
        bench.clock.advance(1.1)
        bench.request_clock.tick()
        assert assigned(p) == ["long1"]
        says(p, 110, LongPlace.ANY)
        await submit(bench, "short1")
        assert assigned(p) == ["long1"], "100 of these are taken by what is on its way"


async def test_what_waits_in_the_backlog_passes_there_and_here() -> None:
    p, d = workers()
    async with started(Bench()) as bench:
        await bench.add(p, d)
        says(p, 0, LongPlace.NONE)
        await submit(bench, "long1", "long2", "short1", "short2")
        for _ in range(4):
            await pop(bench, p)
        assert assigned(p) == []
        says(p, 30, LongPlace.NONE)
        bench.request_clock.tick()
        assert assigned(p) == ["short1"]
        says(p, 30, LongPlace.ANY)
        bench.request_clock.tick()
        assert assigned(p) == ["short1", "long1"], "short2 finds no room now"


async def test_a_short_one_without_room_holds_up_all_behind_it() -> None:
    p, d = workers()
    async with started(Bench()) as bench:
        await bench.add(p, d)
        says(p, 10, LongPlace.NONE)
        await submit(bench, "short1", "long1")
        says(p, 10, LongPlace.ANY)
        bench.clock.advance(1.1)
        bench.request_clock.tick()
        await submit(bench, "short2")
        assert assigned(p) == []


async def test_another_tenant_passes_as_far_as_it_would_have_gone_first() -> None:
    """With tags 0, 20, 40 and so on, up to 300; each is charged its prompt: no answer was seen."""
    p, d = workers()
    async with started(Bench(max_backlog=100)) as bench:
        await bench.add(p, d)
        await submit(bench, "long1", tenant="a")
        rids = [f"short{number}" for number in range(20)]
        for rid in rids:
            says(p, 100, LongPlace.NONE)
            await submit(bench, rid, tenant="b")
            bench.clock.advance(0.02)
        passed = assigned(p)
        assert passed == rids[: LONG // SHORT + 1]
        await submit(bench, "short-own", tenant="a")
        assert assigned(p) == passed, "one of b's is before it"


async def test_its_own_tenant_passes_without_end() -> None:
    p, d = workers()
    async with started(Bench()) as bench:
        await bench.add(p, d)
        await submit(bench, "long1")
        rids = [f"short{number}" for number in range(100)]
        for rid in rids:
            says(p, 100, LongPlace.NONE)
            await submit(bench, rid)
            bench.clock.advance(0.02)
        assert assigned(p) == rids


async def test_what_passed_is_charged_once() -> None:
    p, d = workers()
    async with started(Bench()) as bench:
        await bench.add(p, d)
        await submit(bench, "long1", "short1")
        live = bench.core.requests.get("short1")
        assert live is not None
        assert live.line_charge == SHORT, "no answer was seen yet"
        assert live.backlog_charge == 0, "there its tenant owes it at its end"


async def test_later_classes_pass_nobody_and_keep_no_early_one_out() -> None:
    p, d = workers()
    async with started(Bench()) as bench:
        await bench.add(p, d)
        says(p, 100, LongPlace.EARLY)
        await submit(bench, "long-bulk", priority=6)
        await submit(bench, "long1", "long2")
        assert assigned(p) == ["long1"]
        says(p, 100, LongPlace.NONE)
        await submit(bench, "short-bulk", priority=6)
        assert assigned(p) == ["long1"]


async def test_a_refused_one_leaves_no_place_that_was_thought_to_be_there() -> None:
    p, d = workers()
    async with started(Bench()) as bench:
        await bench.add(p, d)
        says(p, 100, LongPlace.ANY)
        await submit(bench, "long1")
        p.say(Refuse(Attempt("long1", 0), p.incarnation, "no_room"))
        await submit(bench, "long2")
        assert assigned(p) == ["long1"]


async def test_a_worker_of_an_earlier_release_takes_a_long_one_when_nothing_waits_there() -> None:
    p, d = workers()
    p.room_limit_tokens = 0
    async with started(Bench()) as bench:
        await bench.add(p, d)
        says(p, 100, LongPlace.UNTOLD)
        await submit(bench, "long1", "short1")
        assert assigned(p) == []
        p.load = IDLE
        p.say(Pong(2, p.load))
        bench.clock.advance(1.1)
        bench.request_clock.tick()
        assert assigned(p) == ["long1", "short1"]


async def test_a_short_one_has_no_long_ones_ahead_of_it() -> None:
    """So it is not refused for the time that they take."""
    p, d = workers()
    async with started(Bench()) as bench:
        await bench.add(p, d)
        says(p, 0, LongPlace.NONE)
        await submit(bench, "long1", "long2", "short1")
        requests = bench.core.requests
        assert requests.num_ahead(bench.request("x", num_prompt=SHORT)) == 1
        assert requests.num_ahead(bench.request("x", num_prompt=LONG)) == 3
