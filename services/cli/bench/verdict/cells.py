"""The cells of a contest: all running at once, or each started for its turn.

On CPUs all run: those that have no turn are idle. A GPU holds the memory of one worker, so there a
cell is started for each of its runs.
"""

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Protocol, Self

from services.cli.bench.serve.endpoint import Endpoint, look_up
from services.cli.bench.serve.loaded_endpoint import LoadedEndpoint
from services.cli.bench.verdict.contender import Contender
from services.cli.bench.verdict.core_sets import CoreSets, pin
from services.cli.cluster.local_cell import LocalCell, running
from services.cli.cluster.output import Output


@dataclass(frozen=True)
class Cell:
    """A contender that runs."""

    contender: Contender
    endpoint: LoadedEndpoint
    gateway_pid: int | None = None
    """of a gateway that has a core of its own"""


class Cells(Protocol):
    """Whoever takes a cell is alone with it."""

    def turn(self, topology: str) -> AbstractAsyncContextManager[Cell]:
        """The cell runs, and its gateway answers."""


class HeldCells:
    """All run, from entry to exit."""

    def __init__(
        self, arguments: argparse.Namespace, contenders: Sequence[Contender], sets: CoreSets | None
    ) -> None:
        self._arguments = arguments
        self._contenders = contenders
        self._sets = sets
        self._stack = AsyncExitStack()
        self._cells: dict[str, Cell] = {}

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            for one in self._contenders:
                opening = opened(self._arguments, one, self._sets)
                self._cells[one.topology] = await stack.enter_async_context(opening)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    @asynccontextmanager
    async def turn(self, topology: str) -> AsyncIterator[Cell]:
        yield self._cells[topology]


class CellsInTurn:
    """None runs but for its turn."""

    def __init__(
        self, arguments: argparse.Namespace, contenders: Sequence[Contender], sets: CoreSets | None
    ) -> None:
        self._arguments = arguments
        self._contenders = {one.topology: one for one in contenders}
        self._sets = sets

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    def turn(self, topology: str) -> AbstractAsyncContextManager[Cell]:
        return opened(self._arguments, self._contenders[topology], self._sets)


@asynccontextmanager
async def opened(
    arguments: argparse.Namespace, contender: Contender, sets: CoreSets | None
) -> AsyncIterator[Cell]:
    """Starts a planned cell and stops it; one that runs is left as it was."""
    if contender.plan is None:
        assert contender.endpoint is not None
        async with _loaded(arguments, contender, contender.endpoint) as endpoint:
            yield Cell(contender, endpoint)
        return
    output = Output(quiet=True, stream=sys.stderr)
    output.say(f"starting {contender.plan.summary}")
    async with running(contender.plan, output, restart=False) as cell:
        await cell.wait_ready()
        output.flush()
        pid = _pinned(cell, sets) if sets is not None else None
        url = Endpoint(cell.url, arguments.endpoint)
        async with _loaded(arguments, contender, url) as endpoint:
            yield Cell(contender, endpoint, pid)


@asynccontextmanager
async def _loaded(
    arguments: argparse.Namespace, contender: Contender, endpoint: Endpoint
) -> AsyncIterator[LoadedEndpoint]:
    facts = await asyncio.to_thread(look_up, endpoint)
    loaded = LoadedEndpoint(arguments, replace(endpoint, name=contender.topology), facts)
    try:
        yield loaded
    finally:
        loaded.close()


def _pinned(cell: LocalCell, sets: CoreSets) -> int:
    """The gateway's pid, when each process has its cores."""
    gateway, *workers = (child.pid for child in cell.supervisor.children)
    assert gateway is not None
    pin(gateway, sets.gateway)
    for pid, cores in zip(workers, sets.workers, strict=True):
        assert pid is not None
        pin(pid, cores)
    return gateway
