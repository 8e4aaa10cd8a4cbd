"""A Redis that dies, freezes, forgets, fills up, takes no writes, is slow or hangs up."""

import asyncio
import os
import signal
import time
from contextlib import suppress

import psutil

from services.cli.chaos.fault import Kind, NotInjectedError, Scene, is_gone, until
from services.cli.chaos.process_faults import freeze
from shared.errors import BatonError
from shared.state.reply import as_int

AWAY_S = 0.3, 6.0
RECONNECT_S, POLL_S = 5.0, 0.05
SLOW_MS = 300
PROBE = "baton-chaos-probe"
UNLIMITED = "0"


async def kill(scene: Scene) -> str:
    process = psutil.Process(scene.cell.redis.pid)
    scene.cell.data_losses_s.append(time.monotonic())
    os.kill(process.pid, signal.SIGKILL)
    await until("Redis gone", lambda: is_gone(process))
    return "kill -9"


async def freeze_server(scene: Scene) -> str:
    return await freeze(scene, "Redis", [psutil.Process(scene.cell.redis.pid)], AWAY_S)


async def empty(scene: Scene) -> str:
    state = scene.cell.state
    await state.command("SET", PROBE, "1")
    scene.cell.data_losses_s.append(time.monotonic())
    await state.command("FLUSHALL")
    if as_int(await state.command("EXISTS", PROBE)):
        raise NotInjectedError("a key is there after FLUSHALL")
    return "FLUSHALL"


async def fill(scene: Scene) -> str:
    """It is as full as it may be, and evicts nothing."""
    return await _refusing(scene, "maxmemory", "1", UNLIMITED, "maxmemory")


async def take_no_writes(scene: Scene) -> str:
    """As one whose replicas are gone."""
    return await _refusing(scene, "min-replicas-to-write", "1", UNLIMITED, "NOREPLICAS")


async def slow_down(scene: Scene) -> str:
    """Each command waits for up to SLOW_MS."""
    seconds = scene.seconds(*AWAY_S)
    end_s, worst_s = time.monotonic() + seconds, 0.0
    while time.monotonic() < end_s:
        await scene.cell.state.command("CLIENT", "PAUSE", SLOW_MS)
        begin_s = time.monotonic()
        await scene.cell.state.command("PING")
        worst_s = max(worst_s, time.monotonic() - begin_s)
    if worst_s < 0.5 * SLOW_MS / 1e3:
        raise NotInjectedError(f"a command took {worst_s * 1e3:.0f} ms at most")
    return f"commands took up to {worst_s * 1e3:.0f} ms for {seconds:.1f} s"


async def hang_up(scene: Scene) -> str:
    """On every process that is connected to it, but not on us. They may be coming back from what
    happened before."""
    end_s, number = time.monotonic() + RECONNECT_S, 0
    while number < 1:
        answer = await scene.cell.state.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        number = as_int(answer)
        if number < 1 and time.monotonic() > end_s:
            raise NotInjectedError(f"nobody was connected for {RECONNECT_S:g} s")
        await asyncio.sleep(POLL_S)
    return f"{number} connections closed"


KINDS = (
    Kind("Redis killed", kill),
    Kind("Redis frozen", freeze_server),
    Kind("Redis emptied", empty),
    Kind("Redis full", fill),
    Kind("Redis takes no writes", take_no_writes),
    Kind("Redis slow", slow_down),
    Kind("Redis hangs up", hang_up),
)


async def _refusing(scene: Scene, setting: str, value: str, healed: str, said: str) -> str:
    """`said`: in the answer to a write."""
    state, seconds = scene.cell.state, scene.seconds(*AWAY_S)
    await state.command("CONFIG", "SET", setting, value)
    try:
        try:
            await state.command("SET", PROBE, "1")
        except BatonError as error:
            if said not in str(error):
                raise NotInjectedError(f"a write is answered with {error}, not {said}") from None
        else:
            raise NotInjectedError(f"writes are taken with {setting} {value}")
        await asyncio.sleep(seconds)
    finally:
        await state.command("CONFIG", "SET", setting, healed)
        with suppress(BatonError):
            await state.command("DEL", PROBE)
    return f"{setting} {value} for {seconds:.1f} s"
