"""What the operator's page asks: the gateway now, once or watched, and the last requests."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest

from services.gateway.owner.records.row import Row
from services.gateway.routes.watch import MAX_WATCHERS
from tests.support.fakes.served_app import ServedApp
from tests.support.models.text_models import MODEL_NAME

pytestmark = pytest.mark.anyio

ROW = Row("a", "", "default", "done", "stop", "", 1, 9, 4, 7, 5.0, 2.0, "p0", "d0", 1)
REQUESTS = "/v1/baton/requests"
LIVE, WATCH = "/v1/baton/live", "/v1/baton/watch"


async def events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in response.aiter_lines():
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


async def test_the_last_requests(app: ServedApp, client: httpx.AsyncClient) -> None:
    app.door.rows += [ROW, replace(ROW, rid="b", received_ns=2, state="failed")]
    every = (await client.get(REQUESTS)).json()["requests"]
    assert [row["id"] for row in every] == ["b", "a"]
    assert every[1] == ROW.as_dict() | {"model": MODEL_NAME}
    assert (await client.get(f"{REQUESTS}/?limit=1")).json() == {"requests": every[:1]}
    failed = await client.get(REQUESTS, params={"failed": 1, "slow": 0})
    assert failed.json() == {"requests": every[:1]}


@pytest.mark.parametrize(
    ("query", "param"), [("limit=all", "limit"), ("failed=yes", "failed"), ("page=2", "page")]
)
async def test_a_bad_query_is_refused(client: httpx.AsyncClient, query: str, param: str) -> None:
    refused = await client.get(f"{REQUESTS}?{query}")
    error = refused.json()["error"]
    assert (refused.status_code, error["param"]) == (400, param)
    assert error["type"] == "invalid_request_error"


@asynccontextmanager
async def watching(client: httpx.AsyncClient) -> AsyncIterator[httpx.Response]:
    """A stream that has a place, which whoever had it may be about to leave."""
    async with asyncio.timeout(5):
        while True:
            async with client.stream("GET", WATCH) as response:
                if response.status_code == 200:
                    yield response
                    return


async def test_who_polls_fast_is_told_the_same_again(client: httpx.AsyncClient) -> None:
    """A body costs the event loop that tokens go through."""
    bodies = [(await client.get(LIVE)).json()["body"] for _ in range(10)]
    assert len(set(bodies)) <= 2


async def test_all_who_watch_are_told_the_same_once_a_second(
    app: ServedApp, client: httpx.AsyncClient
) -> None:
    async with watching(client) as one, watching(client) as other:
        assert one.headers["content-type"].startswith("text/event-stream")
        assert one.headers["x-accel-buffering"] == "no"
        mine, theirs = events(one), events(other)
        await anext(mine), await anext(theirs)  # at once, each on its own
        before, began_s = app.door.num_live_bodies, asyncio.get_running_loop().time()
        for number in (1, 2):
            assert (
                await anext(mine)
                == await anext(theirs)
                == {
                    "workers": [],
                    "body": before + number,
                }
            )
        assert app.door.num_live_bodies == before + 2
        assert 1.0 < asyncio.get_running_loop().time() - began_s < 5.0


async def test_the_ninth_watcher_is_refused_until_one_leaves(client: httpx.AsyncClient) -> None:
    async with AsyncExitStack() as stack:
        for _ in range(MAX_WATCHERS):
            await stack.enter_async_context(watching(client))
        refused = await client.get(WATCH)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        assert "poll /v1/baton/live" in refused.json()["error"]["message"]
        assert (await client.head(WATCH)).status_code == 200
    async with watching(client):
        pass


async def test_a_gateway_that_stops_ends_the_streams(
    app: ServedApp, client: httpx.AsyncClient
) -> None:
    """Else it would wait for them until its grace is over."""
    async with watching(client) as response:
        app.door.draining = True
        told = [event async for event in events(response)]
    assert len(told) <= 2


async def test_a_body_that_cannot_be_made_ends_the_stream_and_not_the_next_one(
    app: ServedApp, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with watching(client) as response:
        with monkeypatch.context() as patch:
            patch.setattr(app.door, "live", lambda: {"a set is no JSON": {1}})
            with pytest.raises(httpx.RemoteProtocolError):
                _ = [event async for event in events(response)]
    async with watching(client) as response:
        assert await anext(events(response)) == {"workers": [], "body": app.door.num_live_bodies}
