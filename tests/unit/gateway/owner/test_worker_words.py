"""What a worker says that makes no sense, and what it refuses to do."""

import pytest

from shared.errors import AttemptError
from shared.protocol import Assign, Cancel, Receive, Refuse
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
        generation = bench.dispatcher.submit(bench.request())
        p.start()
        first = d if d.all(Receive) else e
        p.tokens(0, 10)
        first.tokens(1, token_id)
        assert p.last(Assign).epoch == 1
        assert first.last(Cancel).epoch == 0
        assert first.link is not None and not first.link.closed
        assert (await anext(generation)).token_ids == (10,)


async def test_a_request_that_a_worker_does_not_take_fails_at_once_and_says_why() -> None:
    p, d = pair()
    async with started(Bench()) as bench:
        await bench.add(p, d)
        generation = bench.dispatcher.submit(bench.request())
        p.say(Refuse("r1", 0, p.inc, "invalid", "token_ids: bad"))
        await settle()
        with pytest.raises(AttemptError, match="does not take this request: token_ids: bad"):
            await anext(generation)
        assert len(p.all(Assign)) == 1
