"""How far a run is: a line that changes on a terminal; elsewhere, one when the run is over."""

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator

from services.cli.bench.measure import progress_line
from services.cli.bench.serve.client.load_client import LoadClient
from services.cli.bench.serve.load_loop import LoadRun

INTERVAL_S = 0.5


@contextlib.asynccontextmanager
async def shown(label: str, run: LoadRun, client: LoadClient) -> AsyncIterator[None]:
    """Shows a run while it goes on, or once when it is over."""
    if not sys.stderr.isatty():
        yield
        progress_line.announce(_state(label, run, client))
        return
    task = asyncio.create_task(_show(label, run, client))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        progress_line.clear()


async def _show(label: str, run: LoadRun, client: LoadClient) -> None:
    while True:
        await asyncio.sleep(INTERVAL_S)
        progress_line.show(_state(label, run, client))


def _state(label: str, run: LoadRun, client: LoadClient) -> str:
    num_refused = sum(sample.refused for sample in run.samples)
    num_failed = sum(not sample.ok for sample in run.samples) - num_refused
    of = f" of {run.num_planned}" if run.num_planned else ""
    return (
        f"{label}: {time.monotonic() - run.start_s:.0f} s, sent {run.num_sent}{of}, "
        f"running {client.num_running}, "
        f"answered {len(run.samples) - num_refused - num_failed}, refused {num_refused}, "
        f"failed {num_failed}"
    )
