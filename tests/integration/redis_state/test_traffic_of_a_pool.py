"""What came and what ended is told once, in order, with what it was and how long ago it came."""

import time
from dataclasses import replace

import pytest

from shared.state.records import Admission, AdmittedRequest, Outcome, RequestState, pool_id
from shared.state.traffic import MAX_READ, Arrived, Ended
from tests.integration.redis_state.backends import RedisBackend

pytestmark = pytest.mark.anyio

REQUEST = AdmittedRequest("r1", "g.1", "acme", pool_id("pool"), 100, 0)
DONE = Outcome(RequestState.DONE, "stop", 7, 64, 2, ttft_s=1.25)


def received(rid: str, age_s: float) -> AdmittedRequest:
    return replace(REQUEST, rid=rid, received_ns=time.time_ns() - round(age_s * 1e9))


async def test_an_end_tells_when_the_request_came_and_what_it_was(
    redis_backend: RedisBackend,
) -> None:
    request = received("r1", 2.5)
    await redis_backend.records.admit(request)
    assert await redis_backend.traffic.ended("pool") == ()
    await redis_backend.records.finish(request, DONE)
    ((_, ago_s, ended),) = await redis_backend.traffic.ended("pool")
    assert 0 <= ago_s < 5
    assert ended is not None and 2.5 <= ended.age_s < 5
    assert ended == Ended(ended.age_s, 100, 64, 7, RequestState.DONE, "r1", 1.25)


async def test_a_request_came_once_however_often_it_is_admitted(
    redis_backend: RedisBackend,
) -> None:
    for _ in range(3):
        await redis_backend.records.admit(received("r1", 0), max_live=1)
    one_too_many = received("r2", 0)
    assert await redis_backend.records.admit(one_too_many, max_live=1) is Admission.OVER_QUOTA
    ((_, ago_s, arrived),) = await redis_backend.traffic.arrived("pool")
    assert 0 <= ago_s < 5
    assert arrived == Arrived("r1", 100)


async def test_a_request_that_is_finished_again_ended_once(redis_backend: RedisBackend) -> None:
    for _ in range(3):
        await redis_backend.records.finish(received("r1", 0), DONE)
    assert len(await redis_backend.traffic.ended("pool")) == 1


async def test_a_reader_goes_on_where_it_was(redis_backend: RedisBackend) -> None:
    places = []
    for number in range(4):
        await redis_backend.records.finish(
            replace(received(f"r{number}", 0), num_prompt_tokens=number), DONE
        )
        places.append((await redis_backend.traffic.ended("pool"))[-1].place)
    found = await redis_backend.traffic.ended("pool", places[1])
    assert [item.request and item.request.num_prompt_tokens for item in found] == [2, 3]
    assert await redis_backend.traffic.ended("pool", places[-1]) == ()
    assert await redis_backend.traffic.ended("other") == ()
    assert len(found) < MAX_READ


async def test_what_cannot_be_read_has_its_place_alone(redis_backend: RedisBackend) -> None:
    client, key = redis_backend.client, redis_backend.keys.ended(pool_id("pool"))
    await client.command("XADD", key, "*", "e", b"\xc1")
    await redis_backend.records.finish(received("r1", 0), DONE)
    unread, ended = await redis_backend.traffic.ended("pool")
    assert unread.request is None
    (behind,) = await redis_backend.traffic.ended("pool", unread.place)
    assert behind.request == ended.request is not None


async def test_a_clock_that_ran_backwards_makes_no_request_end_before_it_came(
    redis_backend: RedisBackend,
) -> None:
    await redis_backend.records.finish(received("r1", -3600), DONE)
    ((_, _, ended),) = await redis_backend.traffic.ended("pool")
    assert ended is not None and ended.age_s == 0
