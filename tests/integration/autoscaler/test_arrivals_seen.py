"""What came is known when it comes, whether or not its answer has ended.

Guarded against: load that rises and shows only once answers end; a request that counts twice.
"""

import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest

from services.autoscaler.arrivals import Arrivals
from services.autoscaler.view import KNOWN_S
from shared.errors import StateUnavailableError
from shared.state.embedded import EmbeddedRedis
from shared.state.keys import Keys
from shared.state.records import AdmittedRequest, Outcome, RequestState, pool_id
from shared.state.redis_client import RedisClient
from shared.state.redis_records import RedisRequestRecords
from shared.state.traffic import Noted, Traffic
from tests.support.fakes.manual_clock import ManualClock

pytestmark = pytest.mark.anyio

DONE = Outcome(RequestState.DONE, "stop", 30, 50)


class Cell:
    """Requests of one pool that come and end."""

    def __init__(self, client: RedisClient) -> None:
        self.traffic = Traffic(client, Keys())
        self.clock = ManualClock()
        self.clock.advance(5_000)
        self.arrivals = Arrivals(self.traffic, self.clock)
        self._records = RedisRequestRecords(client, Keys())

    async def come(self, rid: str, num_prompt_tokens: int = 100) -> AdmittedRequest:
        request = AdmittedRequest(
            rid, "g.1", "acme", pool_id("pool"), num_prompt_tokens, time.time_ns()
        )
        await self._records.admit(request)
        return request

    async def end(self, request: AdmittedRequest) -> None:
        await self._records.finish(request, DONE)

    async def seen(self) -> list[tuple[int, int, int]]:
        """Tokens of the prompt, of those cached, of the answer."""
        await self.arrivals.read("pool")
        return [
            (one.num_prompt_tokens, one.num_cached_tokens, one.num_output_tokens)
            for one in self.arrivals.seen()
        ]


@pytest.fixture
async def client() -> AsyncIterator[RedisClient]:
    with EmbeddedRedis() as server:
        async with RedisClient(server.url) as client:
            yield client


@pytest.fixture
def cell(client: RedisClient) -> Cell:
    return Cell(client)


async def test_a_request_that_runs_is_taken_to_be_like_those_that_ended(cell: Cell) -> None:
    await cell.come("a", 400)
    assert await cell.seen() == [(400, 0, 0)], "nothing is known of answers"
    await cell.end(await cell.come("b"))
    assert sorted(await cell.seen()) == [(100, 50, 30), (400, 200, 30)]


@pytest.mark.parametrize("looks_between", [True, False])
async def test_a_request_counts_once(cell: Cell, *, looks_between: bool) -> None:
    request = await cell.come("a")
    if looks_between:
        await cell.seen()
    await cell.end(request)
    for _ in range(3):
        assert await cell.seen() == [(100, 50, 30)]


async def test_a_request_that_ends_between_the_two_reads_counts_once(
    cell: Cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = await cell.come("a")
    read = cell.traffic.arrived

    async def ends_meanwhile(pool: str, place: str) -> tuple[Noted, ...]:  # type: ignore[type-arg]
        await cell.end(request)
        return await read(pool, place)

    monkeypatch.setattr(cell.traffic, "arrived", ends_meanwhile)
    assert await cell.seen() == [(100, 0, 0)]
    assert await cell.seen() == [(100, 50, 30)]


async def test_a_look_that_fails_in_between_makes_nothing_count_twice(
    cell: Cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = await cell.come("a")
    await cell.seen()
    await cell.end(request)

    async def away(pool: str, place: str) -> tuple[Noted, ...]:  # type: ignore[type-arg]
        raise StateUnavailableError("redis: away")

    monkeypatch.setattr(cell.traffic, "arrived", away)
    with pytest.raises(StateUnavailableError):
        await cell.arrivals.read("pool")
    monkeypatch.undo()
    assert await cell.seen() == [(100, 50, 30)]


async def test_a_request_whose_gateway_died_is_forgotten_in_time(cell: Cell) -> None:
    await cell.come("a")
    assert await cell.seen()
    cell.clock.advance(KNOWN_S + 1)
    assert not await cell.seen()


async def test_what_a_clock_set_back_puts_into_the_future_came_by_now(
    cell: Cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis's ids never go back: until its clock has caught up, all that comes has the last."""
    arrived, ended = cell.traffic.arrived, cell.traffic.ended
    await cell.end(await cell.come("a"))
    await cell.come("b")

    async def ahead(read: Any, pool: str, place: str) -> tuple[Noted[Any], ...]:
        return tuple(each._replace(ago_s=each.ago_s - 120) for each in await read(pool, place))

    monkeypatch.setattr(cell.traffic, "arrived", partial(ahead, arrived))
    monkeypatch.setattr(cell.traffic, "ended", partial(ahead, ended))
    await cell.arrivals.read("pool")
    moments = [one.at_s for one in cell.arrivals.seen()]
    assert len(moments) == 2 and max(moments) <= cell.clock.monotonic_s()


async def test_entries_that_cannot_be_read_hide_none_behind_them(
    cell: Cell, client: RedisClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as one call reads: the next call reads on behind them."""
    for module in ("shared.state.traffic", "services.autoscaler.arrivals"):
        monkeypatch.setattr(f"{module}.MAX_READ", 2)
    for key in (Keys().arrived(pool_id("pool")), Keys().ended(pool_id("pool"))):
        for _ in range(4):
            await client.command("XADD", key, "*", "e", b"\xc1")
    await cell.end(await cell.come("a"))
    await cell.come("b", 400)
    assert sorted(await cell.seen()) == [(100, 50, 30), (400, 200, 30)]
