"""A worker whose engine ended is there again in the same process, as a new incarnation."""

import asyncio
import os
import shutil
import signal
import socket
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from shared.protocol import Tokens
from shared.state.keys import Keys
from shared.state.redis_client import RedisClient
from shared.state.redis_registry import RedisWorkerRegistry
from shared.worker.lives import MAX_SHORT_LIVES
from tests.integration.worker.conftest import Serve
from tests.support.models.tiny_model import TINY, write_checkpoint
from tests.support.pairs.worker_process import (
    WorkerLink,
    WorkerProcess,
    all_entries,
    is_gone,
    local_prompt,
    wait_for,
)

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]
HOST = "127.0.0.1"


@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL])
async def test_an_engine_that_ended_is_replaced_by_one_of_a_new_incarnation(
    serve: Serve, redis_url: str, role: str, number: signal.Signals
) -> None:
    worker = serve(role)
    old = await worker.entry(redis_url)
    link, engine = await WorkerLink.dial(old), worker.engine()
    engine.send_signal(number)
    new = await worker.entry(redis_url, after=old)
    assert (old.worker_id, old.pool, old.pid) == (new.worker_id, new.pool, new.pid)
    async with asyncio.timeout(10), RedisClient(redis_url) as client:
        await link.closed.wait()
        listed = {
            entry.incarnation for entry in await all_entries(RedisWorkerRegistry(client, Keys()))
        }
    assert old.incarnation not in listed and new.incarnation in listed
    said = f"the engine process ended with status -{number.value}; starting it again"
    assert said in worker.errors() and "Traceback" not in worker.errors()
    assert is_gone(engine) and worker.engine() != engine
    worker.io.terminate()
    assert worker.wait(10) == 0


async def test_one_engine_after_the_other_leaves_nothing_behind(
    serve: Serve, redis_url: str
) -> None:
    """Neither descriptors nor threads, sockets in a folder or maps of pools."""
    worker = serve()
    entry = await worker.entry(redis_url)
    held: list[dict[str, Counter[str]]] = []
    for _ in range(4):
        link = await WorkerLink.dial(entry)
        link.send(local_prompt(entry.incarnation, "r", max_tokens=900))
        await link.take(Tokens)
        worker.engine().send_signal(signal.SIGSEGV)
        former, entry = entry, await worker.entry(redis_url, after=entry)
        await link.closed.wait()
        assert former.incarnation != entry.incarnation
        wait_for(lambda: worker.errors().count("ready: registered") > len(held) + 1 or None)
        held.append(what_is_held(worker))
    assert held[1:] == held[:1] * 3


def what_is_held(worker: WorkerProcess) -> dict[str, Counter[str]]:
    """By each of its processes."""
    engine = worker.engine()
    server = engine.parent()
    assert server is not None
    found = {}
    for name, process in (("io", worker.io), ("server", server), ("engine", engine)):
        links = [link.readlink() for link in Path(f"/proc/{process.pid}/fd").iterdir()]
        kinds = Counter(str(link).partition(":[")[0] for link in links)
        maps = Path(f"/proc/{process.pid}/maps").read_text()
        kinds["maps of pools"] = maps.count("memfd:baton-kv")
        kinds["threads"] = psutil.Process(process.pid).num_threads()
        found[name] = kinds
    return found


async def test_an_engine_holds_nothing_of_its_server(serve: Serve, redis_url: str) -> None:
    worker = serve()
    await worker.entry(redis_url)
    engine = worker.engine()
    server = engine.parent()
    assert server is not None
    of_server, of_engine = (open_files(process.pid) for process in (server, engine))
    assert len(of_server) == 1, "what it is asked through"
    assert not of_server & of_engine


def open_files(pid: int) -> set[str]:
    """But for the standard ones."""
    folder = Path(f"/proc/{pid}/fd")
    return {str(link.readlink()) for link in folder.iterdir() if int(link.name) > 2}


async def test_a_port_that_is_named_is_taken_again_and_probes_are_answered_meanwhile(
    serve: Serve, redis_url: str
) -> None:
    """A kubelet that hears nothing ends the worker, however long a model loads."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server((HOST, 0))) for _ in range(3)]
        ports = [sock.getsockname()[1] for sock in sockets]
    names = ("worker_port", "transfer_port", "probe_port")
    worker = serve("prefill", transport="tcp", **dict(zip(names, ports, strict=True)))
    old = await worker.entry(redis_url)
    link = await WorkerLink.dial(old)
    while await status(ports[2], "ready") != 200:
        pass
    worker.engine().kill()
    renewed = asyncio.create_task(worker.entry(redis_url, after=old))
    seen: list[tuple[int, int]] = []
    while not renewed.done() or seen[-1] != (200, 200):
        seen.append((await status(ports[2], "health"), await status(ports[2], "ready")))
    assert set(seen) == {(200, 200), (200, 503)}
    new = await renewed
    assert (old.port, new.port) == (ports[0], ports[0])
    await link.closed.wait()
    await (await WorkerLink.dial(new)).close()


async def status(port: int, question: str) -> int:
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(f"GET /{question} HTTP/1.1\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    return int(answer.split()[1])


async def test_a_fork_server_that_is_killed_takes_its_engine_along_and_is_replaced(
    serve: Serve, redis_url: str
) -> None:
    worker = serve()
    old = await worker.entry(redis_url)
    engine = worker.engine()
    os.kill(engine.ppid(), signal.SIGKILL)
    await worker.entry(redis_url, after=old)
    assert is_gone(engine)


async def test_sigterm_while_the_next_engine_loads_is_a_clean_stop(
    serve: Serve, redis_url: str
) -> None:
    worker = serve()
    await worker.entry(redis_url)
    worker.engine().kill()
    wait_for(lambda: "starting it again" in worker.errors() or None)
    worker.io.terminate()
    assert worker.wait(10) == 0
    assert worker.error_lines() == []


async def test_a_worker_whose_next_engine_cannot_start_ends_and_says_why(
    serve: Serve, redis_url: str, tmp_path: Path
) -> None:
    write_checkpoint(tmp_path / "model", TINY)
    worker = serve(model=tmp_path / "model")
    await worker.entry(redis_url)
    shutil.rmtree(tmp_path / "model")
    worker.engine().kill()
    assert worker.wait(10) == 2
    [line] = worker.error_lines()
    assert "model" in line and "Traceback" not in worker.errors()


async def test_a_worker_whose_engines_end_again_and_again_ends_with_them(
    serve: Serve, redis_url: str
) -> None:
    """Its starter's patience is then what holds it back."""
    worker = serve()
    entry = await worker.entry(redis_url)
    for _ in range(MAX_SHORT_LIVES - 1):
        worker.engine().kill()
        entry = await worker.entry(redis_url, after=entry)
    worker.engine().kill()
    assert worker.wait(10) == 1
    [line] = worker.error_lines()
    assert line.endswith("the engine process ended with status -9")
