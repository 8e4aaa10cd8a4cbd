"""An error of ours in one request harms no other: its neighbours keep their turns."""

from typing import Any

import pytest

from services.gateway.owner.generation import Generation
from shared.errors import AttemptError
from shared.protocol import Assign, Attempt, Cancel, Receive, Start, Tokens
from shared.state.records import RequestState
from tests.unit.gateway.owner.gateway_bench import (
    FULL,
    G_INC,
    IDLE,
    Bench,
    FakeWorker,
    settle,
    started,
    until,
)

pytestmark = pytest.mark.anyio
BROKEN: Any = None
"""no time, no tokens, no state: whoever looks at it raises"""


async def running(bench: Bench) -> tuple[FakeWorker, FakeWorker]:
    p, d = FakeWorker("prefill", "p0"), FakeWorker("decode", "d0")
    await bench.add(p, d)
    return p, d


async def ended_alone(bench: Bench, rid: str, generation: Generation) -> None:
    """Its client has one clean error, its record says so, nothing of it is left."""
    await settle()
    assert isinstance(generation.failure, AttemptError)
    assert (generation.failure.code, generation.failure.status) == ("internal_error", 500)
    assert bench.requests.get(rid) is None
    record = await bench.records.read(rid)
    assert record is not None
    assert (record.state, record.code) == (RequestState.FAILED, "internal_error")


async def test_a_turn_goes_on_after_a_request_that_raises(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with started(Bench()) as bench:
        p, _ = await running(bench)
        broken, stalled = (bench.door.submit(bench.request(rid)) for rid in ("r1", "r2"))
        await settle()
        bench.live("r1").timing.progress_s = BROKEN
        bench.clock.advance(6.0)
        bench.request_clock.tick()
        assert p.last(Assign).work.attempt == Attempt("r2", 1)
        await ended_alone(bench, "r1", broken)
        assert [cancel.attempt.rid for cancel in p.all(Cancel)] == ["r1", "r2"]
        assert caplog.text.count("request r1 ends") == caplog.text.count("Traceback") == 1
        bench.request_clock.tick()
        assert stalled.failure is None


async def test_who_waits_is_placed_although_one_before_raises() -> None:
    async with started(Bench()) as bench:
        p = FakeWorker("prefill", "p0")
        p.load = FULL
        await bench.add(p, FakeWorker("decode", "d0"))
        broken = bench.door.submit(bench.request("r1"))
        bench.door.submit(bench.request("r2"))
        await settle()
        bench.live("r1").block_hashes = BROKEN
        p.say(Tokens(p.incarnation, (), IDLE))
        bench.clock.advance(2.0)
        bench.request_clock.tick()
        assert [assign.work.attempt.rid for assign in p.all(Assign)] == ["r2"]
        await ended_alone(bench, "r1", broken)


async def test_a_missing_decode_worker_is_chosen_for_the_others() -> None:
    async with started(Bench()) as bench:
        p, d = await running(bench)
        generations = [bench.door.submit(bench.request(rid)) for rid in ("r1", "r2")]
        d.die()
        await settle()
        for assign in p.all(Assign):
            p.say(Start(assign.work.attempt, p.incarnation, 0, p.load))
        bench.live("r1").block_hashes = BROKEN
        other = FakeWorker("decode", "d1")
        await bench.add(other)
        assert [receive.work.attempt.rid for receive in other.all(Receive)] == ["r2"]
        await ended_alone(bench, "r1", generations[0])


async def test_a_state_machine_that_raises_itself_is_no_endless_request() -> None:
    async with started(Bench()) as bench:
        await running(bench)
        generation = bench.door.submit(bench.request("r1"))
        await settle()
        live = bench.live("r1")
        live.timing.progress_s, live.machine._held = BROKEN, BROKEN
        bench.request_clock.tick()
        await ended_alone(bench, "r1", generation)
        await until(lambda: not bench.records.liveness.live[G_INC])
