"""What open pages cost a gateway under load: of one core, in CPU time.

Guarded against: a body that is made for each watcher, and rows that cost as much as the requests
they are of. The workers are mocks, and pages are what they ask for.
"""

import asyncio
import itertools
import json
import random
import statistics
import time
from collections.abc import Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.gateway.routes.watch import MAX_WATCHERS
from shared.state.embedded import EmbeddedRedis
from tests.e2e.sse_load import LoadReport, keep_open
from tests.support.fakes.mock_cell import MockCell, mock_cell
from tests.support.measured import Measured
from tests.support.redis_server import ON_PATH, server_binary
from tests.support.yardstick import core_slowness

NUM_STREAMS, NUM_PAGES = 64, MAX_WATCHERS
"""As many pages as may watch: what four cost drowns in what else differs between windows."""
STEP_MS, LENGTHS = 20.0, (100, 150, 200, 250, 300)
"""Tokens of the answers in turn: of one length, they would all begin together, in some windows."""
ROWS_EVERY_S = 2.0
WINDOW_S, NUM_WINDOWS = 3.0, 17
"""The first and the last without pages."""
MAX_SHARE = 0.018
"""of a core, by eight pages. Four then cost at most a hundredth: one body a second is made for all
of them, in less than 2 ms, and they halve the rest."""


def bodies() -> Iterator[bytes]:
    for number, length in enumerate(itertools.cycle(LENGTHS)):
        prompt = [5 + number % 1000, *range(5, 104)]
        body = {"model": "demo", "prompt": prompt, "max_tokens": length}
        yield json.dumps(body | {"stream": True, "ignore_eos": True}).encode()


async def page(url: str) -> None:
    """As long as it is open: events as they come, and rows every other second."""

    async def rows(client: httpx.AsyncClient) -> None:
        await asyncio.sleep(random.uniform(0, ROWS_EVERY_S))  # noqa: S311
        while True:
            (await client.get("/v1/baton/requests?limit=50")).raise_for_status()
            await asyncio.sleep(ROWS_EVERY_S)

    async with httpx.AsyncClient(base_url=url, timeout=10) as client, asyncio.TaskGroup() as tasks:
        tasks.create_task(rows(client))
        async with client.stream("GET", "/v1/baton/watch") as events:
            async for _ in events.aiter_lines():
                pass


@asynccontextmanager
async def open_pages(url: str, number: int) -> Any:
    tasks = [asyncio.create_task(page(url)) for _ in range(number)]
    await asyncio.sleep(0.5)
    try:
        yield
        assert not any(task.done() for task in tasks), "a page was turned away"
    finally:
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def shares(cell: MockCell) -> tuple[list[float], list[float]]:
    """Of a core, without pages and with them, in turns."""
    found: tuple[list[float], list[float]] = ([], [])
    for number in range(NUM_WINDOWS):
        watched = number % 2
        async with open_pages(cell.url, NUM_PAGES * watched):
            begun_s, cpu_s = time.monotonic(), cell.cpu_s()
            await asyncio.sleep(WINDOW_S)
            found[watched].append((cell.cpu_s() - cpu_s) / (time.monotonic() - begun_s))
    return found


@pytest.mark.alone
@pytest.mark.clock
def test_four_pages_cost_a_hundredth_of_a_core(tmp_path: Path, measured: Measured) -> None:
    async def run(cell: MockCell) -> tuple[LoadReport, tuple[list[float], list[float]]]:
        seconds = NUM_WINDOWS * (WINDOW_S + 1.0)
        load = asyncio.create_task(
            keep_open(cell.url, bodies(), NUM_STREAMS, seconds, lambda: None)
        )
        await asyncio.sleep(2.0)
        found = await shares(cell)
        return await load, found

    with (
        EmbeddedRedis(server_binary(ON_PATH)) as redis,
        mock_cell(redis.url, tmp_path, step_ms=STEP_MS) as cell,
    ):
        slowness = core_slowness()
        report, (without, watched) = asyncio.run(run(cell))
    assert not report.failed, report.failed[0].error
    # Next to its neighbours: the load drifts, and some window has a hiccup of the machine.
    pairs = zip(watched, itertools.pairwise(without), strict=True)
    more = statistics.median(share - statistics.mean(around) for share, around in pairs)
    measured.note(f"without pages: {[f'{share:.3f}' for share in without]}")
    measured.note(f"with pages: {[f'{share:.3f}' for share in watched]}")
    measured.at_most(f"{NUM_PAGES} pages, of a core", more, MAX_SHARE * max(1.0, slowness))
