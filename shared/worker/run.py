"""The life of a worker's io process: start, serve, drain, stop.

engine process loads the model -> transport and link server listen -> registered
SIGTERM                        -> refuse new work, finish what runs, leave
the engine dies                -> so does this process: the worker is one thing
"""

import asyncio
import logging
import signal
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from shared.checkpoint import load_checkpoint
from shared.errors import SettingsError
from shared.event_loop import run_main
from shared.settings import Settings
from shared.telemetry.logs import configure_logs
from shared.worker.engine_client import EngineClient
from shared.worker.identity import Identity, WorkerRole
from shared.worker.node import Node, Parts, Service

logger = logging.getLogger(__name__)

DRAIN_LIMIT_S = 30.0
"""running attempts get this long after SIGTERM"""


def run_worker(
    settings: Settings, role: WorkerRole, build_service: Callable[[Parts], Service]
) -> int:
    """Serve until SIGTERM (0) or until the engine ends (its exit status)."""
    if settings.embedded_redis:
        raise SettingsError("--redis: a worker needs the URL of a running Redis")
    name = settings.served_model_name or load_checkpoint(settings.model).name
    settings = replace(settings, served_model_name=name)
    configure_logs(settings.log_level)
    return run_main(_serve(settings, role, build_service))


async def _serve(
    settings: Settings, role: WorkerRole, build_service: Callable[[Parts], Service]
) -> int:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    engine = EngineClient(settings, role)
    loading = asyncio.create_task(engine.start())
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({loading, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if not loading.done():
        await engine.stop()
        return 0
    identity = Identity.of_process(settings, role)
    node = Node(settings, identity, engine, loading.result(), build_service)
    await node.open()
    async with asyncio.TaskGroup() as tasks:
        background = [tasks.create_task(job) for job in node.background()]
        status = await _until_stopped(stopping, engine)
        await node.leave(DRAIN_LIMIT_S if status == 0 else 0.0)
        for task in background:
            task.cancel()
    await node.close()
    await engine.stop()
    return status


async def _until_stopped(stopping: "asyncio.Task[Any]", engine: EngineClient) -> int:
    """0 when asked to stop; the engine's status, at least 1, when it ended by itself."""
    ended = asyncio.create_task(engine.wait())
    await asyncio.wait({stopping, ended}, return_when=asyncio.FIRST_COMPLETED)
    if stopping.done():
        return 0
    logger.error("the engine process ended with status %s", ended.result())
    return max(1, ended.result())
