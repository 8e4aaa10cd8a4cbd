"""The life of a worker's io process: start, serve, drain, stop.

engine process loads the model -> transport and link server listen -> registered
SIGTERM                        -> refuse new work, finish what runs, leave
SIGUSR2                        -> the engine leaves a trace of its next steps
the engine dies                -> all that it served ends, and begins again as a new incarnation
it hangs, or cannot start      -> this process ends, see `shared.worker.lives`
"""

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Callable
from ipaddress import ip_address
from typing import Any

from shared.challenge import warn_if_short
from shared.errors import SettingsError
from shared.event_loop import run_main
from shared.model.checkpoint import load_checkpoint
from shared.process import freeze_heap, thaw_heap
from shared.settings.groups import NetworkSettings, Settings
from shared.settings.load import said_of_preset
from shared.telemetry.logs import configure_logs
from shared.transfer.build import check_transport
from shared.worker.channel import Ready, Trace
from shared.worker.engine_client import EngineClient, EngineExitError
from shared.worker.fork_client import ForkServer
from shared.worker.identity import Identity, WorkerRole
from shared.worker.inbox import Service
from shared.worker.lives import Lives
from shared.worker.node import Node, Parts
from shared.worker.probe_server import ProbeServer

logger = logging.getLogger(__name__)


def run_worker(
    settings: Settings, role: WorkerRole, build_service: Callable[[Parts], Service]
) -> int:
    """Serve until SIGTERM; returns 0. EngineExitError when the engine cannot be relied on."""
    if settings.cell.embedded_redis:
        raise SettingsError("--redis: a worker needs the URL of a running Redis")
    check_transport(settings)
    model, network = settings.model, settings.network
    checkpoint = load_checkpoint(model.name, random_weights=model.random_weights)
    configure_logs(settings.telemetry.log_level)
    for line in said_of_preset(settings):
        logger.info("%s", line)
    warn_if_open(network)
    warn_if_short(network.cell_secret)
    name = model.served_name or checkpoint.name
    return run_main(Worker(settings, role, name, build_service).run())


def warn_if_open(network: NetworkSettings) -> None:
    """Not a refusal: a network may be closed by other means."""
    if not network.cell_secret and not is_loopback(network.host):
        logger.warning(
            "no BATON_CELL_SECRET: whoever reaches %s can use this worker; set it, the same for "
            "every process of the cell, or BATON_CELL_SECRET_FILE",
            network.host,
        )


def is_loopback(host: str) -> bool:
    """Whether only processes of this machine reach that address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Worker:
    """What outlives an engine: the process that the next one is forked from, and the probes."""

    def __init__(
        self,
        settings: Settings,
        role: WorkerRole,
        served_model: str,
        build_service: Callable[[Parts], Service],
    ) -> None:
        self._settings = settings
        self._role = role
        self._served_model = served_model
        self._build_service = build_service
        self._server = ForkServer(settings, role)
        self._lives = Lives()
        self._engine: EngineClient | None = None
        """None between two: the last one would keep its pool mapped"""
        self._node: Node | None = None
        """what serves; None while an engine starts or ends"""
        self._probes = ProbeServer(self._unready, self._trouble)

    async def run(self) -> int:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, self._trace)
        stopping = asyncio.create_task(stop.wait())
        try:
            while (died := await self._live(stopping)) is not None:
                if stopping.done() or not self._lives.goes_on(died.cause, time.monotonic()):
                    raise died
                logger.error("%s; starting it again", died)
                thaw_heap()
        finally:
            await self._probes.close()
            self._server.close()
        return 0

    async def _live(self, stopping: "asyncio.Task[Any]") -> EngineExitError | None:
        """One incarnation, until its engine ends, which is returned, or this process was asked to
        stop. EngineExitError if its engine does not start."""
        settings = self._settings
        self._engine = engine = EngineClient(settings, self._server)
        try:
            ready = await _load(engine, stopping)
            if ready is None:
                return None
            identity = Identity.of_process(
                self._role, settings.worker, self._served_model, settings.network.host
            )
            node = Node(settings, identity, engine, ready, self._build_service)
            step_s = ready.step_tokens * ready.prefill_token_s
            failing = asyncio.create_task(engine.failure(step_s))
            return await self._run_node(node, failing, stopping)
        finally:
            self._engine = None
            await engine.stop()

    async def _run_node(
        self,
        node: Node,
        failing: "asyncio.Task[EngineExitError]",
        stopping: "asyncio.Task[Any]",
    ) -> EngineExitError | None:
        """Until asked to stop and drained, or until the engine fails, also while draining."""
        try:
            await self._open(node)
            self._lives.begin(time.monotonic())
            freeze_heap()
            await asyncio.wait({stopping, failing}, return_when=asyncio.FIRST_COMPLETED)
            if not failing.done():
                async with asyncio.TaskGroup() as tasks:
                    leaving = tasks.create_task(node.leave(self._settings.limits.drain_s))
                    await asyncio.wait({leaving, failing}, return_when=asyncio.FIRST_COMPLETED)
                    leaving.cancel()
            if failing.done():
                node.lose_engine(failing.result())
        finally:
            self._node = None
            await node.close()
        return failing.result() if failing.done() else None

    async def _open(self, node: Node) -> None:
        await node.open()
        self._node = node
        network, port = self._settings.network, self._settings.worker.probe_port
        if port and not self._probes.listens:
            await self._probes.start(network.host, port)

    def _trace(self) -> None:
        if self._engine is not None:
            self._engine.send(Trace())

    def _unready(self) -> str:
        return self._node.unready if self._node is not None else "its engine is not loaded"

    def _trouble(self) -> str:
        return self._node.trouble if self._node is not None else ""


async def _load(engine: EngineClient, stopping: "asyncio.Task[Any]") -> Ready | None:
    """None when asked to stop before the model was loaded."""
    loading = asyncio.create_task(engine.start())
    await asyncio.wait({loading, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if loading.done():
        return loading.result()
    await engine.stop()
    with contextlib.suppress(EngineExitError):
        await loading
    return None
