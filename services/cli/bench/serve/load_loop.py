"""Runs a plan: an open loop sends at its times whatever the server does, a closed one sends the
next when the last has ended.

Only the open loop shows what users feel under a load that does not wait for the server; a closed
loop slows down with it.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from services.cli.bench.measure.loop_lag import LoopLag
from services.cli.bench.serve.client.load_client import LoadClient
from services.cli.bench.serve.sample import RequestSample
from services.cli.bench.serve.workload import Limits, PlannedRequest

SPIN_S = 0.002
"""timers have a millisecond's grain: the last stretch before a send is waited out turn by turn"""


@dataclass
class LoadRun:
    """What came of a plan."""

    start_s: float = 0.0
    end_s: float = 0.0
    samples: list[RequestSample] = field(default_factory=list)
    num_sent: int = 0
    num_planned: int | None = None
    loop_lag_s: list[float] = field(default_factory=list)
    client_cpu_share: float = 0.0

    @property
    def seconds(self) -> float:
        """First scheduled time to the end of the last answer."""
        return self.end_s - self.start_s


async def run_open(client: LoadClient, plan: Sequence[PlannedRequest], run: LoadRun) -> None:
    """Each request at its time."""
    run.num_planned = len(plan)
    async with _measured(run), asyncio.TaskGroup() as tasks:
        for planned in plan:
            due_s = run.start_s + planned.at_s
            await _until(due_s)
            run.num_sent += 1
            tasks.create_task(_send(client, planned, due_s, run))


async def run_closed(
    client: LoadClient, plan: Iterator[PlannedRequest], slots: int, limits: Limits, run: LoadRun
) -> None:
    """`slots` requests at every moment, until the limits are reached."""
    run.num_planned = limits.num_requests

    async def keep_busy() -> None:
        while limits.num_requests is None or run.num_sent < limits.num_requests:
            elapsed_s = time.monotonic() - run.start_s
            if limits.duration_s is not None and elapsed_s >= limits.duration_s:
                return
            run.num_sent += 1
            planned = next(plan)
            await _send(client, planned, time.monotonic(), run)

    async with _measured(run), asyncio.TaskGroup() as tasks:
        for _ in range(slots):
            tasks.create_task(keep_busy())


async def _send(client: LoadClient, planned: PlannedRequest, due_s: float, run: LoadRun) -> None:
    run.samples.append(await client.send(planned, due_s))


async def _until(due_s: float) -> None:
    rest_s = due_s - time.monotonic()
    if rest_s > SPIN_S:
        await asyncio.sleep(rest_s - SPIN_S)
    while time.monotonic() < due_s:  # noqa: ASYNC110 -- time is all it waits for
        await asyncio.sleep(0)


@asynccontextmanager
async def _measured(run: LoadRun) -> AsyncIterator[None]:
    """Times a run and watches the client while it goes on."""
    lag = LoopLag()
    run.start_s = time.monotonic()
    lag.start()
    try:
        yield
    finally:
        run.client_cpu_share = lag.stop()
        run.end_s = time.monotonic()
        run.loop_lag_s = lag.late_s
        run.samples.sort(key=lambda sample: sample.index)
