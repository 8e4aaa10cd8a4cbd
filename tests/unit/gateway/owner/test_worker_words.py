"""What a worker says that makes no sense, and what it refuses to do."""

import logging
from dataclasses import replace

import pytest

from shared.errors import AttemptError, RequestError
from shared.protocol import Assign, Attempt, Cancel, Fail, Receive, Refuse
from tests.unit.gateway.owner.gateway_bench import VOCAB_SIZE, Bench, FakeWorker, settle, started

pytestmark = pytest.mark.anyio


def pair() -> tuple[FakeWorker, FakeWorker]:
    return FakeWorker("prefill", "p0"), FakeWorker("decode", "d0")


@pytest.mark.parametrize("token_id", [-1, VOCAB_SIZE, 2**40])
async def test_what_is_no_token_costs_the_attempt_and_not_the_link(token_id: int) -> None:
    p, d = pair()
    e = FakeWorker("decode", "d1")
    async with started(Bench()) as bench:
        await bench.add(p, d, e)
        generation = bench.door.submit(bench.request())
        p.start()
        first = d if d.all(Receive) else e
        p.tokens(0, 10)
        first.tokens(1, token_id)
        assert p.last(Assign).work.attempt.epoch == 1
        assert first.last(Cancel).attempt.epoch == 0
        assert first.link is not None and not first.link.closed
        assert (await anext(generation)).token_ids == (10,)


async def test_a_request_that_a_worker_does_not_take_fails_at_once_and_says_why() -> None:
    p, d = pair()
    async with started(Bench()) as bench:
        await bench.add(p, d)
        generation = bench.door.submit(bench.request())
        p.say(Refuse(Attempt("r1", 0), p.incarnation, "invalid", "token_ids: bad"))
        await settle()
        with pytest.raises(AttemptError, match="does not take this request: token_ids: bad"):
            await anext(generation)
        assert len(p.all(Assign)) == 1


async def test_a_grammar_that_nothing_can_match_is_the_client_s_error_at_once() -> None:
    p, d = pair()
    async with started(Bench()) as bench:
        await bench.add(p, FakeWorker("prefill", "p1"), d)
        request = replace(bench.request(), grammar_param="guided_json")
        generation = bench.door.submit(request)
        p.start()
        p.tokens(0, 10)
        await settle()
        d.say(Refuse(Attempt("r1", 0), d.incarnation, "grammar", "at #/properties/city: no"))
        assert (await anext(generation)).token_ids == (10,)
        with pytest.raises(RequestError, match=r"^guided_json: at #/properties/city: no$") as told:
            await anext(generation)
        assert (told.value.status, told.value.param) == (400, "guided_json")
        assert told.value.code == "invalid_schema"
        assert p.last(Cancel).reason == "invalid_schema"
        assert bench.core.counters.attempts.total() == 1
        bench.door.submit(bench.request("r2"))
        p.start()
        assert d.last(Receive).work.attempt.rid == "r2", "nobody failed"


async def test_why_an_attempt_failed_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """As when a worker cannot follow grammars: then another one is asked."""
    caplog.set_level(logging.WARNING)
    p, d = pair()
    q = FakeWorker("prefill", "p1")
    text = "this worker cannot follow grammars"
    async with started(Bench()) as bench:
        await bench.add(p, q, d)
        bench.door.submit(bench.request())
        for epoch in (0, 0, 7):
            p.say(Fail(Attempt("r1", epoch), p.incarnation, "refused", text))
        assert q.last(Assign).work.attempt.epoch == 1
    told = [record.getMessage() for record in caplog.records if text in record.getMessage()]
    assert told == [f"request r1: epoch 0 failed on p0 with refused: {text}"]


async def test_where_a_request_was_when_its_worker_died_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """So that the log of a death leads to the requests that it cost a pause, and back."""
    caplog.set_level(logging.INFO)
    p, d = pair()
    async with started(Bench()) as bench:
        await bench.add(p, FakeWorker("prefill", "p1"), d)
        bench.door.submit(bench.request())
        bench.door.submit(bench.request("r2"))
        p.die()
    told = [record.getMessage() for record in caplog.records]
    assert "p0 lost with 1 live requests" in told
    assert [each for each in told if " on p0" in each] == [
        "request r1: epoch 1 after link_lost on p0"
    ]
