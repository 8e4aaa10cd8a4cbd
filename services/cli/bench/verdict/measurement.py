"""One run of one topology: wait until the cell is idle, warm up, load it, and see whether the
figures are the system's own."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from services.cli.bench.measure.cpu_time import MAX_WAIT_SHARE, cpu_time
from services.cli.bench.serve.loaded_endpoint import LoadedEndpoint
from services.cli.bench.verdict.cells import Cell, Cells
from services.cli.bench.verdict.core_sets import CoreSets, staying_on
from services.cli.bench.verdict.point_maker import PointMaker
from services.cli.bench.verdict.topology_run import TopologyRun
from shared.errors import BatonError

PAUSE_S = 0.5
"""after which a cell that shows no status counts as idle"""
IDLE_LIMIT_S = 60.0
POLL_S = 0.1


@dataclass
class Watch:
    """What happened to a cell during a run; empty if nothing did."""

    fault: str = ""


class Measurement:
    """Measures runs, one at a time."""

    def __init__(self, cells: Cells, points: PointMaker, sets: CoreSets | None) -> None:
        self._cells = cells
        self._points = points
        self._client = sets.client if sets is not None else None
        self._attempts: Counter[tuple[str, float, int]] = Counter()

    async def run(self, topology: str, rate: float, seed: int, turn: int) -> TopologyRun:
        attempt = self._attempts[topology, rate, seed]
        self._attempts[topology, rate, seed] += 1
        point, warm = self._points.at(rate, seed, attempt)
        async with self._cells.turn(topology) as cell:
            await cell.endpoint.warm_up(warm)
            before = await idle_status(cell.endpoint)
            with staying_on(self._client), watched_gateway(cell) as watch:
                summary = await cell.endpoint.run_point(point, iter(()))
            after = await status_of(cell.endpoint)
        fault = watch.fault or lost_workers(before, after)
        return TopologyRun.of_summary(summary, (topology, rate, seed, turn), fault)


async def status_of(endpoint: LoadedEndpoint) -> Mapping[str, Any]:
    """Empty where the server shows none."""
    return await asyncio.to_thread(endpoint.endpoint.status)


async def idle_status(endpoint: LoadedEndpoint) -> Mapping[str, Any]:
    """When no request is left of the run before. BatonError if some do not end."""
    await asyncio.sleep(PAUSE_S)
    deadline_s = time.monotonic() + IDLE_LIMIT_S
    while not is_idle(status := await status_of(endpoint)):
        if time.monotonic() > deadline_s:
            where = endpoint.endpoint.url
            raise BatonError(f"{where} is still busy after {IDLE_LIMIT_S:g} s; who else loads it?")
        await asyncio.sleep(POLL_S)
    return status


def is_idle(status: Mapping[str, Any]) -> bool:
    """True where nothing is known."""
    live = status.get("requests", {}).get("live", 0)
    workers = status.get("workers", ())
    return not live and not any(one["running"] or one["waiting"] for one in workers)


def lost_workers(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Which are gone or others now: what served was not the cell that is judged."""

    def ready(status: Mapping[str, Any]) -> set[str]:
        workers = status.get("workers", ())
        return {one["incarnation"] for one in workers if one["state"] == "ready"}

    lost = sorted(name.partition(".")[0] for name in ready(before) - ready(after))
    return f"lost {', '.join(lost)} during the run" if lost else ""


@contextmanager
def watched_gateway(cell: Cell) -> Iterator[Watch]:
    """Whether a gateway with a core of its own always had it."""
    watch, pid = Watch(), cell.gateway_pid
    if pid is None:
        yield watch
        return
    before, start_s = cpu_time(pid), time.monotonic()
    yield watch
    share = (cpu_time(pid) - before).waited_s / (time.monotonic() - start_s)
    if share > MAX_WAIT_SHARE:
        watch.fault = f"the gateway was ready to run but had no core {share:.0%} of the time"
