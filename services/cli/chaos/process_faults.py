"""Processes that are killed, frozen, stopped or left without descriptors."""

import asyncio
import os
import resource
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress

import psutil

from services.cli.chaos.cell import ROLES, Gateway, Worker
from services.cli.chaos.fault import Kind, Scene, is_gone, is_stopped, until

FREEZE_S = 0.3, 6.0
GATEWAY_FREEZE_S = 0.3, 4.0
STOP_LIMIT_S = 50.0
"""for a process that was told to stop"""
DESCRIPTORS_S = 0.5, 2.0


async def kill_engine(scene: Scene) -> str | None:
    return await _end_engines(scene, signal.SIGKILL, 1)


async def crash_engine(scene: Scene) -> str | None:
    """It dies by a signal of its own making, as far as its worker can see."""
    return await _end_engines(scene, signal.SIGSEGV, 1)


async def kill_pair(scene: Scene) -> str | None:
    """An engine of each role at once."""
    return await _end_engines(scene, signal.SIGKILL, 2)


async def kill_worker(scene: Scene) -> str | None:
    worker = _spare(scene, await scene.cell.ready())
    if worker is None or not worker.processes:
        return None
    processes = worker.processes
    scene.cell.exits[worker.name] += 1
    _send(processes[:1], signal.SIGKILL)
    await until(f"all of {worker.name} gone", lambda: all(map(is_gone, processes)))
    return f"{worker.name}: kill -9 of its io process"


async def kill_fork_server(scene: Scene) -> str | None:
    worker = _spare(scene, await scene.cell.ready())
    if worker is None or len(worker.processes) < 2:
        return None
    server = worker.processes[1]
    _send([server], signal.SIGKILL)
    await until(f"{worker.name}'s fork server gone", lambda: is_gone(server))
    return f"{worker.name}: kill -9 of its fork server"


async def freeze_worker(scene: Scene) -> str | None:
    worker = _spare(scene, await scene.cell.ready())
    return None if worker is None else await freeze(scene, worker.name, worker.processes)


async def freeze_engine(scene: Scene) -> str | None:
    """Its io process answers on: only progress tells."""
    worker = _spare(scene, await scene.cell.ready())
    if worker is None or worker.engine is None:
        return None
    return await freeze(scene, f"{worker.name}'s engine", [worker.engine])


async def stop_worker(scene: Scene) -> str | None:
    """As a pod is: it drains, hands over and ends."""
    worker = _spare(scene, await scene.cell.ready())
    if worker is None or not worker.processes:
        return None
    io = worker.processes[0]
    scene.cell.exits[worker.name] += 1
    _send([io], signal.SIGTERM)
    await until(f"{worker.name} ended", lambda: is_gone(io), STOP_LIMIT_S)
    return f"{worker.name}: SIGTERM"


async def kill_gateway(scene: Scene) -> str | None:
    return await _end_gateway(scene, signal.SIGKILL)


async def stop_gateway(scene: Scene) -> str | None:
    return await _end_gateway(scene, signal.SIGTERM)


async def freeze_gateway(scene: Scene) -> str | None:
    gateway = _gateway(scene)
    if gateway.child.pid is None:
        return None
    process = psutil.Process(gateway.child.pid)
    return await freeze(scene, gateway.child.spec.name, [process], GATEWAY_FREEZE_S)


async def no_descriptors(scene: Scene) -> str | None:
    """A process that is ready can open no file and take no connection for a while."""
    ready = await scene.cell.ready()
    workers = [worker.child for found in ready.values() for worker in found]
    children = [*(one.child for one in scene.cell.gateways), *workers]
    child = scene.numbers.choice([one for one in children if scene.may_hit(one.spec.name)])
    if child.pid is None:
        return None
    process, kind = psutil.Process(child.pid), resource.RLIMIT_NOFILE
    before = resource.prlimit(process.pid, kind)
    # The limit is of numbers: the lowest free one may be far below the highest in use.
    num_open = process.num_fds()
    resource.prlimit(process.pid, kind, (num_open, before[1]))
    await until("the limit", lambda: resource.prlimit(process.pid, kind)[0] == num_open)
    seconds = scene.seconds(*DESCRIPTORS_S)
    await asyncio.sleep(seconds)
    with suppress(ProcessLookupError):
        resource.prlimit(process.pid, kind, before)
    return f"{child.spec.name}: no descriptor above {num_open} for {seconds:.1f} s"


KINDS = (
    Kind("kill engine", kill_engine, least_ready=2),
    Kind("crash engine", crash_engine, least_ready=2),
    Kind("kill an engine of each role", kill_pair, least_ready=2),
    Kind("kill worker", kill_worker, least_ready=2),
    Kind("kill fork server", kill_fork_server, least_ready=2),
    Kind("freeze worker", freeze_worker, least_ready=2),
    Kind("freeze engine", freeze_engine, least_ready=2),
    Kind("stop worker", stop_worker, least_ready=2),
    Kind("kill gateway", kill_gateway, cuts_gateway=True),
    Kind("stop gateway", stop_gateway, cuts_gateway=True),
    Kind("freeze gateway", freeze_gateway),
    Kind("no descriptors", no_descriptors, cuts_gateway=True),
)


async def _end_engines(scene: Scene, number: signal.Signals, num: int) -> str | None:
    """Of workers of different roles."""
    ready = await scene.cell.ready()
    roles = scene.numbers.sample(ROLES, num)
    found_each = [spare_ones(scene, ready[role]) for role in roles]
    workers = [scene.numbers.choice(found) for found in found_each if found]
    engines = [worker.engine for worker in workers]
    if len(workers) < num or None in engines:
        return None
    found = [engine for engine in engines if engine is not None]
    _send(found, number)
    names = " and ".join(worker.name for worker in workers)
    await until(f"engines of {names} gone", lambda: all(map(is_gone, found)))
    return f"{names}: {number.name} to the engine"


async def _end_gateway(scene: Scene, number: signal.Signals) -> str | None:
    gateway = _gateway(scene)
    if gateway.child.pid is None:
        return None
    process = psutil.Process(gateway.child.pid)
    scene.cell.exits[gateway.child.spec.name] += 1
    _send([process], number)
    await until("the gateway gone", lambda: is_gone(process), STOP_LIMIT_S)
    return f"{gateway.child.spec.name}: {number.name}"


async def freeze(
    scene: Scene,
    name: str,
    processes: Sequence[psutil.Process],
    between_s: tuple[float, float] = FREEZE_S,
) -> str:
    """For a while; then they go on."""
    seconds = scene.seconds(*between_s)
    _send(processes, signal.SIGSTOP)

    def frozen() -> bool:
        """One of them may have ended by then, as an engine that is being replaced."""
        left = [process for process in processes if not is_gone(process)]
        return bool(left) and all(map(is_stopped, left))

    try:
        await until(f"{name} frozen", frozen)
        await asyncio.sleep(seconds)
    finally:
        _send(processes, signal.SIGCONT)
    await until(f"{name} goes on", lambda: not any(map(is_stopped, processes)))
    return f"{name}: frozen for {seconds:.1f} s"


def _send(processes: Sequence[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)


def _spare(scene: Scene, ready: Mapping[str, list[Worker]]) -> Worker | None:
    """One of a role that has another, so that a request can go on."""
    spare = [worker for found in ready.values() for worker in spare_ones(scene, found)]
    return scene.numbers.choice(spare) if spare else None


def spare_ones(scene: Scene, ready: Sequence[Worker]) -> list[Worker]:
    """Of a role's workers."""
    return [worker for worker in ready if len(ready) > 1 and scene.may_hit(worker.name)]


def _gateway(scene: Scene) -> Gateway:
    return scene.numbers.choice(
        [one for one in scene.cell.gateways if scene.may_hit(one.child.spec.name)]
    )
