"""The gateway's core on fake links: one request from submit to its end, in every weather."""

import math
from dataclasses import replace

import pytest

from services.gateway.owner.generation import Delta, Generation
from shared.errors import AttemptError, OverloadedError
from shared.message_parts.span import Span
from shared.protocol import Assign, Attempt, Cancel, Fail, Handback, Receive, Refuse, Spans
from shared.state.records import RequestState
from shared.telemetry import attributes as names
from shared.transfer_address import TransferAddress
from tests.unit.gateway.owner.gateway_bench import (
    Bench,
    FakeWorker,
    settle,
    started,
    until,
)

pytestmark = pytest.mark.anyio


async def read(generation: Generation) -> tuple[list[int], str | None]:
    tokens: list[int] = []
    reason = None
    async for delta in generation:
        tokens += delta.token_ids
        reason = delta.finish_reason
    return tokens, reason


def pair() -> tuple[FakeWorker, FakeWorker]:
    return FakeWorker("prefill", "p0"), FakeWorker("decode", "d0")


def hand_over(p: FakeWorker, d: FakeWorker, token: int = 10, index: int = 0) -> None:
    """START, RECEIVE and token 1 of the last attempt."""
    p.start(num_cached_tokens=16)
    p.tokens(index, token)
    d.tokens(index, token)


async def test_a_request_travels_through_both_workers() -> None:
    p, d = pair()
    async with started(Bench()) as bench:
        await bench.add(p, d)
        generation = bench.door.submit(bench.request())
        assign = p.last(Assign)
        assert assign.work.attempt == Attempt("r1", 0)
        assert (assign.mode, len(assign.work.hash_root)) == ("prefill", 32)
        p.start(num_cached_tokens=16)
        receive = d.last(Receive)
        assert receive.work == assign.work
        assert (receive.prefill_incarnation, receive.source, receive.ticket) == (
            p.incarnation,
            TransferAddress("p0:7"),
            assign.ticket,
        )
        p.tokens(0, 10)
        await settle()
        first = await anext(generation)
        assert (first.token_ids, generation.cached_tokens) == ((10,), 16)
        d.tokens(0, 10)
        d.tokens(1, 11)
        d.tokens(2, 12, reason="length")
        assert await read(generation) == ([11, 12], "length")
        record = await bench.records.read("r1")
        assert record is not None
        assert (record.state, record.num_output_tokens) == (RequestState.DONE, 3)
        assert bench.door.status()["requests"] == {"live": 0}
        assert not p.all(Cancel) and not d.all(Cancel)
        counters = bench.core.counters
        assert (counters.direct_assigns, counters.backlog_puts) == (1, 0)
        assert counters.requests == {"done": 1}


async def test_the_record_is_written_before_the_end() -> None:
    p, d = pair()
    async with started(Bench()) as bench:
        await bench.add(p, d)
        generation = bench.door.submit(bench.request(max_tokens=1))
        p.tokens(0, 10, reason="length")
        assert await read(generation) == ([10], "length")
        record = await bench.records.read("r1")
        assert record is not None and record.state is RequestState.DONE


async def test_the_last_token_does_not_wait_for_its_record() -> None:
    p, d = pair()
    async with started(Bench()) as bench:
        await bench.add(p, d)
        generation = bench.door.submit(bench.request(max_tokens=2))
        hand_over(p, d)
        await settle()
        assert await anext(generation) == Delta((10,), ())
        bench.records.away = True
        d.tokens(1, 11, reason="length")
        assert await anext(generation) == Delta((11,), ())
        record = await bench.records.read("r1")
        assert record is not None and record.state is RequestState.LIVE
        assert await read(generation) == ([], "length")


async def test_no_token_before_admit_and_a_refusal_cancels() -> None:
    p, d = pair()
    async with started(Bench()) as bench:
        await bench.add(p, d)
        bench.records.refuses = True
        generation = bench.door.submit(bench.request())
        hand_over(p, d)
        await settle()
        with pytest.raises(OverloadedError) as refused:
            await anext(generation)
        assert refused.value.status == 429
        assert [cancel.reason for cancel in d.all(Cancel)] == ["refused"]
        assert sum(bench.attainment.kept()["ttft"]) == 0, "no user was served, in time or not"


async def test_redis_away_at_admission_is_503_and_away_later_is_not_noticed() -> None:
    p, d = pair()
    async with started(Bench()) as bench:
        await bench.add(p, d)
        generation = bench.door.submit(bench.request("r1"))
        await settle()
        bench.records.away = bench.registry.away = True
        hand_over(p, d)
        d.tokens(1, 11, 12, reason="length")
        assert await read(generation) == ([10, 11, 12], "length")
        assert sum(bench.attainment.kept()["ttft"]) == 1
        with pytest.raises(OverloadedError) as refused:
            await read(bench.door.submit(bench.request("r2")))
        assert refused.value.status == 503
        bench.records.away = False
        await until(lambda: not bench.records.liveness.live.get("g", None))
        record = None
        while record is None or record.state is RequestState.LIVE:
            await settle()
            record = await bench.records.read("r1")
        assert record.num_output_tokens == 3


async def test_a_dead_decode_worker_costs_an_epoch_and_no_token() -> None:
    p, d = pair()
    other = FakeWorker("decode", "d1")
    async with started(Bench()) as bench:
        await bench.add(p, d, other)
        generation = bench.door.submit(bench.request(max_tokens=4))
        hand_over(p, d)
        d.tokens(1, 11)
        d.die()
        assign = p.last(Assign)
        assert assign.work.attempt.epoch == 1
        assert assign.work.token_ids == (*range(40), 10, 11)
        assert assign.work.num_prompt_tokens == 40
        p.start()
        assert other.last(Receive).work.attempt.epoch == 1
        p.tokens(2, 12)
        other.tokens(2, 12, 13, reason="length")
        assert await read(generation) == ([10, 11, 12, 13], "length")
        receipt = bench.door.receipt("r1")
        assert receipt is not None
        ends = [attempt["end"] for attempt in receipt["attempts"]]
        assert ends == ["link_lost", "done"]
        assert receipt["workers"] == {"prefill": "p0", "decode": "d1"}


async def test_one_pair_waits_for_the_worker_that_comes_back() -> None:
    p, d = pair()
    async with started(Bench()) as bench:
        await bench.add(p, d)
        generation = bench.door.submit(bench.request())
        hand_over(p, d)
        d.die()
        assert not bench.door.ready()
        p.start()
        p.tokens(1, 11)
        back = FakeWorker("decode", "d0", "2")
        await bench.add(back)
        assert back.last(Receive).work.token_ids == (*range(40), 10)
        back.tokens(1, 11, 12, reason="length")
        assert await read(generation) == ([10, 11, 12], "length")


async def test_an_answer_may_take_for_ever_but_each_token_has_its_time() -> None:
    """Waiting in the line counts: nobody can serve it, and nobody else ends it."""
    p, d = pair()
    async with started(Bench(first_token_timeout_s=300.0)) as bench:
        await bench.add(p, d)
        request = replace(bench.request(max_tokens=9), timeout_s=math.inf, limit_s=math.inf)
        generation = bench.door.submit(request)
        hand_over(p, d)
        for index in range(1, 4):
            bench.clock.advance(299.0)
            d.tokens(index, 10 + index)
            bench.request_clock.tick()
        assert bench.door.status()["requests"] == {"live": 1}
        p.die()
        d.die()
        bench.clock.advance(301.0)
        bench.request_clock.tick()
        await settle()
        with pytest.raises(AttemptError) as late:
            await read(generation)
        assert (late.value.code, late.value.status) == ("token_timeout", 504)
        assert "no token came for 300 s" in late.value.message
        assert "--first-token-timeout-s" in late.value.message


async def test_both_gone_until_the_deadline_is_one_clean_error() -> None:
    p, d = pair()
    async with started(Bench()) as bench:
        await bench.add(p, d)
        generation = bench.door.submit(bench.request())
        hand_over(p, d)
        p.die()
        d.die()
        bench.clock.advance(59.0)
        bench.request_clock.tick()
        assert bench.door.status()["requests"] == {"live": 1}
        bench.clock.advance(1.5)
        bench.request_clock.tick()
        await settle()
        with pytest.raises(AttemptError) as late:
            await read(generation)
        assert (late.value.code, late.value.status) == ("deadline_exceeded", 504)
        assert "is up after 60 s (set by the header x-baton-timeout-s" in late.value.message
        with pytest.raises(OverloadedError) as refused:
            bench.door.submit(bench.request("r2"))
        assert refused.value.status == 503


async def test_a_dead_prefill_worker_leaves_local_prefill_with_its_reason() -> None:
    p, d = pair()
    async with started(Bench()) as bench:
        await bench.add(p, d)
        generation = bench.door.submit(bench.request(max_tokens=1))
        p.die()
        assign = d.last(Assign)
        assert (assign.mode, assign.reason, assign.work.attempt.epoch) == (
            "local",
            "no_prefill_worker",
            1,
        )
        d.tokens(0, 10, reason="length")
        assert await read(generation) == ([10], "length")


async def test_handback_and_refusal_move_the_request_on() -> None:
    p, d = pair()
    q = FakeWorker("prefill", "p1")
    async with started(Bench(max_attempts=1)) as bench:
        await bench.add(p, q, d)
        bench.door.submit(bench.request())
        assert p.all(Assign)
        p.say(Refuse(Attempt("r1", 0), p.incarnation, "no_room"))
        assert q.last(Assign).work.attempt.epoch == 1
        q.say(Handback(Attempt("r1", 1), q.incarnation, "drain"))
        await settle()
        assert len(q.all(Assign)) + len(p.all(Assign)) == 3


async def test_attempts_run_out_in_one_error() -> None:
    p, d = pair()
    async with started(Bench(max_attempts=2)) as bench:
        await bench.add(p, d)
        generation = bench.door.submit(bench.request())
        for epoch in range(2):
            p.say(Fail(Attempt("r1", epoch), p.incarnation, "broken", ""))
        await settle()
        with pytest.raises(AttemptError) as spent:
            await read(generation)
        assert spent.value.code == "attempts_exhausted"
        record = await bench.records.read("r1")
        assert record is not None and record.state is RequestState.FAILED


async def test_a_pause_of_the_gateway_itself_is_no_stall() -> None:
    p, d = pair()
    async with started(Bench()) as bench:
        await bench.add(p, d)
        bench.door.submit(bench.request())
        bench.clock.advance(30.0)
        bench.request_clock.tick(own_pause_s=29.9)
        assert len(p.all(Assign)) == 1
        bench.clock.advance(5.0)
        bench.request_clock.tick()
        assert len(p.all(Assign)) == 2


async def test_the_text_side_stops_and_the_client_leaves() -> None:
    p, d = pair()
    async with started(Bench()) as bench:
        await bench.add(p, d)
        stopped = bench.door.submit(bench.request("r1", max_tokens=9))
        hand_over(p, d)
        await settle()
        await anext(stopped)
        await stopped.finish("stop")
        assert d.last(Cancel).attempt.rid == "r1"
        record = await bench.records.read("r1")
        assert record is not None and (record.state, record.code) == (RequestState.DONE, "stop")
        left = bench.door.submit(bench.request("r2"))
        left.cancel()
        assert p.last(Cancel).attempt.rid == "r2"
        await settle()
        record = await bench.records.read("r2")
        assert record is not None and record.state is RequestState.CANCELLED
        assert bench.door.status()["requests"] == {"live": 0}


async def test_limits_are_told_with_a_computed_retry_after() -> None:
    p, d = pair()
    async with started(Bench(max_live_requests=2)) as bench:
        await bench.add(p, d)
        for rid in ("r1", "r2"):
            bench.door.submit(bench.request(rid))
        with pytest.raises(OverloadedError) as early:
            bench.door.submit(bench.request("r3"))
        bench.clock.advance(8.0)
        with pytest.raises(OverloadedError) as later:
            bench.door.submit(bench.request("r3"))
        assert early.value.status == 429
        assert early.value.retry_after_s < later.value.retry_after_s == 8.0
        assert not bench.door.ready()


async def test_shutting_down_ends_what_lives_with_one_error() -> None:
    p, d = pair()
    bench = Bench()
    async with started(bench):
        await bench.add(p, d)
        generation = bench.door.submit(bench.request())
        await settle()
    with pytest.raises(AttemptError) as stopped:
        await read(generation)
    assert stopped.value.code == "gateway_stopping"
    record = await bench.records.read("r1")
    assert record is not None and record.state is RequestState.FAILED


async def test_the_receipt_tells_the_stages() -> None:
    p, d = pair()
    async with started(Bench()) as bench:
        await bench.add(p, d)
        request = bench.request(max_tokens=2)
        generation = bench.door.submit(request)
        begin = request.received_ns
        ms = 1_000_000
        bench.clock.advance(0.002)
        p.start(num_cached_tokens=32)
        p.say(
            Spans(
                Attempt("r1", 0),
                p.incarnation,
                (Span(names.SPAN_PREFILL, begin + ms, begin + 4 * ms, 1),),
            )
        )
        bench.clock.advance(0.003)
        p.tokens(0, 10)
        moved: dict[str, str | int | float | bool] = {
            names.TRANSFER_BYTES: 640,
            names.TRANSFER_BLOCKS: 3,
            names.TRANSFER_TRANSPORT: "tcp",
            names.TRANSFER_WHY: "no socket",
            names.TRANSFER_LINK_GBPS: 2.5,
        }
        spans = (
            Span(names.SPAN_TRANSFER, begin + 2 * ms, begin + 6 * ms, 2, moved),
            Span(names.SPAN_DECODE, begin + 7 * ms, begin + 9 * ms, 2),
        )
        bench.clock.advance(0.005)
        d.tokens(0, 10, 11, reason="length")
        d.say(Spans(Attempt("r1", 0), d.incarnation, spans))
        await read(generation)
        receipt = bench.door.receipt("r1")
        assert receipt is not None
        path = receipt["critical_path_ms"]
        assert path == {
            "queue": 1.0,
            "prefill": 4.0,
            "handover": 2.0,
            "decode": 3.0,
            "other": 0.0,
            "total": 10.0,
        }
        assert (receipt["transport"], receipt["bytes"], receipt["blocks"]) == ("tcp", 640, 3)
        assert receipt["transport_chosen_because"] == "no socket"
        moved_by = {"prefill": "p0", "decode": "d0", "transport": "tcp", "why": "no socket"}
        assert bench.door.status()["hand_overs"] == [
            {**moved_by, "gb_per_s": 2.5, "num": 1, "bytes": 640}
        ]
        assert (receipt["cached_tokens"], receipt["completion_tokens"]) == (32, 2)
        assert [stage["worker"] for stage in receipt["stages"]] == ["gateway", "p0", "d0", "d0"]
        assert [span.name for span in bench.spans.spans] == [names.SPAN_REQUEST, names.SPAN_READ]
