"""A fault that is injected, and what every kind of it must do."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple

import psutil

from services.cli.chaos.asks import drawn_between
from services.cli.chaos.cell import Cell
from services.cli.chaos.load import Load
from shared.errors import BatonError

POLL_S = 0.01
SEEN_S = 2.0
"""a fault that shows later did not happen"""


class NotInjectedError(BatonError):
    """What was to be broken is whole."""


class Scene(NamedTuple):
    """What a fault may touch, and its own random numbers."""

    cell: Cell
    load: Load
    numbers: random.Random

    def seconds(self, least: float, most: float) -> float:
        """Short ones are as common as long ones."""
        return drawn_between(least, most, self.numbers)

    def may_hit(self, name: str) -> bool:
        """A gateway or worker."""
        return name not in self.cell.spared


Inject = Callable[[Scene], Awaitable[str | None]]
"""breaks something, sees that it is broken, and mends what does not mend itself. Says what it did;
None if there was nothing to do it to. NotInjectedError if it did not happen."""


@dataclass(frozen=True)
class Kind:
    """Of faults."""

    name: str
    inject: Inject
    least_ready: int = 1
    """workers of each role that must be ready before"""
    cuts_gateway: bool = False
    """its clients' connections may end"""
    hits_anyone: bool = False
    """no process can be spared"""
    on_wires: bool = False
    """the cell's connections must lead through wires"""
    missing: Callable[[], str] = str
    """why this machine cannot have it; empty if it can"""


@dataclass(frozen=True)
class Injected:
    """One that happened."""

    kind: str
    what: str
    begin_s: float
    end_s: float
    """both on the monotonic clock"""
    cuts_gateway: bool = False


async def until(what: str, happened: Callable[[], bool], limit_s: float = SEEN_S) -> None:
    """NotInjectedError if it has not by then."""
    end_s = time.monotonic() + limit_s
    while not happened():
        if time.monotonic() > end_s:
            raise NotInjectedError(f"not seen within {limit_s:g} s: {what}")
        await asyncio.sleep(POLL_S)


def is_gone(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def is_stopped(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_STOPPED
    except psutil.NoSuchProcess:
        return False
