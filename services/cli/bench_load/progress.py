"""One line on a terminal that says how far a run is; where there is none, as in the log of a CI
job, one line for each part that ended or began."""

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator

from services.cli.bench_load.load_client import LoadClient
from services.cli.bench_load.load_loop import LoadRun

INTERVAL_S = 0.5
_CLEAR = "\r\x1b[K"


def say(text: str) -> None:
    """A line that the next one replaces."""
    if sys.stderr.isatty():
        sys.stderr.write(f"{_CLEAR}{text}")
        sys.stderr.flush()


def announce(text: str) -> None:
    """A line of its own where there is no terminal."""
    if sys.stderr.isatty():
        say(text)
    else:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


def clear() -> None:
    say("")


@contextlib.asynccontextmanager
async def shown(label: str, run: LoadRun, client: LoadClient) -> AsyncIterator[None]:
    """Shows a run while it goes on, or once when it is over."""
    if not sys.stderr.isatty():
        yield
        announce(_state(label, run, client))
        return
    task = asyncio.create_task(_show(label, run, client))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        clear()


async def _show(label: str, run: LoadRun, client: LoadClient) -> None:
    while True:
        await asyncio.sleep(INTERVAL_S)
        say(_state(label, run, client))


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
