"""The life of a worker's io process: start, serve, drain, stop.

engine process loads the model -> transport and link server listen -> registered
SIGTERM                        -> refuse new work, finish what runs, leave
the engine dies or hangs       -> this process ends: the worker is one thing
"""

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable
from ipaddress import ip_address
from typing import Any

from shared.challenge import warn_if_short
from shared.errors import SettingsError
from shared.event_loop import run_main
from shared.model.checkpoint import load_checkpoint
from shared.process import freeze_heap
from shared.settings.groups import NetworkSettings, Settings
from shared.telemetry.logs import configure_logs
from shared.transfer.build import check_transport
from shared.worker.channel import Ready
from shared.worker.engine_client import EngineClient, EngineExitError
from shared.worker.fork_client import ForkServer
from shared.worker.identity import Identity, WorkerRole
from shared.worker.inbox import Service
from shared.worker.node import Node, Parts

logger = logging.getLogger(__name__)


def run_worker(
    settings: Settings, role: WorkerRole, build_service: Callable[[Parts], Service]
) -> int:
    """Serve until SIGTERM; returns 0. EngineExitError when the engine ends by itself or hangs."""
    if settings.cell.embedded_redis:
        raise SettingsError("--redis: a worker needs the URL of a running Redis")
    check_transport(settings)
    model, network = settings.model, settings.network
    checkpoint = load_checkpoint(model.name, random_weights=model.random_weights)
    configure_logs(settings.telemetry.log_level)
    warn_if_open(network)
    warn_if_short(network.cell_secret)
    name = model.served_name or checkpoint.name
    return run_main(_serve(settings, role, name, build_service))


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


async def _serve(
    settings: Settings,
    role: WorkerRole,
    served_model: str,
    build_service: Callable[[Parts], Service],
) -> int:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    stopping = asyncio.create_task(stop.wait())
    server = ForkServer(settings)
    engine = EngineClient(settings, role, server)
    try:
        ready = await _load(engine, stopping)
        if ready is not None:
            host = settings.network.host
            identity = Identity.of_process(role, settings.worker, served_model, host)
            node = Node(settings, identity, engine, ready, build_service)
            step_s = ready.step_tokens * ready.prefill_token_s
            failing = asyncio.create_task(engine.failure(step_s))
            await _run_node(node, failing, stopping, settings.limits.drain_s)
    finally:
        await engine.stop()
        server.close()
    return 0


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


async def _run_node(
    node: Node,
    failing: "asyncio.Task[EngineExitError]",
    stopping: "asyncio.Task[Any]",
    drain_s: float,
) -> None:
    """Until asked to stop and drained, or until the engine fails, also while draining."""
    try:
        await node.open()
        freeze_heap()
        await asyncio.wait({stopping, failing}, return_when=asyncio.FIRST_COMPLETED)
        if not failing.done():
            async with asyncio.TaskGroup() as tasks:
                leaving = tasks.create_task(node.leave(drain_s))
                await asyncio.wait({leaving, failing}, return_when=asyncio.FIRST_COMPLETED)
                leaving.cancel()
        if failing.done():
            node.lose_engine(failing.result())
    finally:
        await node.close()
    if failing.done():
        raise failing.result()
