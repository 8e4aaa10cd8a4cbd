"""A planned system, running: what `baton up` and `baton demo` have in common."""

import asyncio
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from services.cli.cluster.machine import gpus_reach, num_cores, num_gpus
from services.cli.cluster.output import Output
from services.cli.cluster.plan import Machine, Plan
from services.cli.cluster.ports import local_url, reserve_port
from services.cli.cluster.redis_check import check_redis
from services.cli.cluster.run_file import remove_record, write_record
from services.cli.cluster.supervisor import Supervisor
from shared.held_folder import held_folder
from shared.runtime_folder import runtime_folder
from shared.settings.groups import Settings
from shared.settings.load import changed
from shared.state.embedded import EmbeddedRedis
from shared.telemetry.logs import configure_logs

Result = TypeVar("Result")
FOLDER_PREFIX = "baton-cell-"
"""of folders whose process locks them; a Baton that does not must use another one"""


@dataclass(frozen=True)
class LocalCell:
    """A supervised system and where it answers."""

    supervisor: Supervisor
    url: str
    admin_url: str
    """of the port that needs no API key"""
    plan: Plan
    """with what was decided when it started"""
    redis: EmbeddedRedis | None
    """None: one that was there"""

    @property
    def page(self) -> str:
        """The address of the operator's page."""
        return f"{self.admin_url}/ui"

    async def wait_ready(self) -> None:
        """Until all workers are ready and the gateway serves; StartError when one cannot."""
        await self.supervisor.wait_ready(self.admin_url)


def this_machine() -> Machine:
    num = num_gpus()
    return Machine(num_cores(), num, reach=num > 1 and gpus_reach(num))


def baton_command() -> list[str]:
    """How to run `baton` again as this process was run: the installed script, else the module."""
    script = Path(sys.argv[0])
    if script.name == "baton" and script.is_file():
        return [sys.executable, str(script.resolve())]
    return [sys.executable, "-m", "services.cli"]


@asynccontextmanager
async def running(
    plan: Plan, output: Output, *, restart: bool, command: list[str] | None = None
) -> AsyncIterator[LocalCell]:
    """Starts everything; the cell is not ready yet. Everything has stopped afterwards."""
    settings = plan.settings
    configure_logs("warning")
    if not settings.network.cell_secret:
        settings = changed(settings, cell_secret=secrets.token_hex(32))
    network, cell = settings.network, settings.cell
    folder = runtime_folder()
    with (
        _transfer_folder(settings) as settings,
        reserve_port(network.host, network.port) as holder,
        reserve_port(network.host, network.admin_port) as admin_holder,
    ):
        port, admin_port = (each.getsockname()[1] for each in (holder, admin_holder))
        plan = replace(plan, settings=changed(settings, admin_port=admin_port))
        url, admin_url = (local_url(network.host, each) for each in (port, admin_port))
        redis = EmbeddedRedis() if cell.embedded_redis else None
        if redis is not None:
            redis.start()
        else:
            await check_redis(cell.redis)
        redis_url = cell.redis if redis is None else redis.url
        record = write_record(
            folder,
            port,
            url,
            output.log_folder,
            admin_url=admin_url,
            redis=redis_url,
            cell_secret=network.cell_secret,
        )
        try:
            tag = "" if redis is not None else f"-{secrets.token_hex(3)}"
            supervisor = Supervisor(
                plan.processes(redis_url, port, tag),
                command or baton_command(),
                output,
                redis=redis,
                restart=restart,
            )
            async with supervisor:
                yield LocalCell(supervisor, url, admin_url, plan, redis)
        finally:
            if redis is not None:
                redis.stop()
            remove_record(folder, record)


@contextmanager
def _transfer_folder(settings: Settings) -> Iterator[Settings]:
    """The settings with a transfer folder where mapped workers need one and none is named. It is
    this cell's alone and goes with it; one that a killed cell left is removed."""
    if settings.handover.transport not in ("auto", "mapped") or settings.handover.transfer_dir:
        yield settings
        return
    with held_folder(FOLDER_PREFIX) as folder:
        yield changed(settings, transfer_dir=str(folder))


@asynccontextmanager
async def stop_signals() -> AsyncIterator[asyncio.Event]:
    """An event that SIGINT, SIGTERM or SIGHUP sets; a second signal ends everything at once."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if stop.is_set():
            os._exit(1)  # the kernel ends the children with us
        stop.set()

    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in signals:
        loop.add_signal_handler(number, on_signal)
    try:
        yield stop
    finally:
        for number in signals:
            with suppress(RuntimeError):
                loop.remove_signal_handler(number)


async def finished(work: Awaitable[object], stop: asyncio.Event) -> bool:
    """Whether `work` ended before the stop signal, which cancels it; its error is raised."""
    working = asyncio.ensure_future(work)
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([working, stopping], return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            return False
        working.result()
        return True
    finally:
        working.cancel()
        stopping.cancel()
        await asyncio.gather(working, stopping, return_exceptions=True)


async def until_stopped(work: Coroutine[Any, Any, Result]) -> Result | None:
    """What `work` returns; None if a stop signal came first: then it was cancelled, and has stopped
    and removed what it had started."""
    async with stop_signals() as stop:
        task = asyncio.create_task(work)
        return task.result() if await finished(task, stop) else None
