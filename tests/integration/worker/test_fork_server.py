"""Engines are forked from one thread, share nothing, and are gone with their server."""

import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator

import psutil
import pytest

from shared.errors import BatonError
from shared.mover.client import data_socket_pair
from shared.worker.channel import receive_memory
from shared.worker.fork_client import ForkedProcess, ForkServer
from tests.support.settings import settings_with

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

DRAWS = """
import os, random, secrets
import numpy as np
import torch
from shared.worker.fork_server import fork
np.random.random(), random.random(), torch.rand(1)
for _ in range(3):
    if not fork():
        drawn = random.random(), np.random.random(), torch.rand(1).item(), secrets.token_hex()
        print(*drawn, flush=True)
        os._exit(0)
    os.wait()
"""
THREAD = """
import threading
from shared.worker.fork_server import fork
threading.Thread(target=threading.Event().wait, daemon=True).start()
fork()
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )


def test_no_two_engines_draw_the_same_random_numbers() -> None:
    drawn = run(DRAWS).stdout.split()
    assert len(drawn) == len(set(drawn)) == 3 * 4


def test_what_is_imported_starts_no_thread_and_one_that_runs_is_told() -> None:
    assert "threads run" not in run(DRAWS).stderr
    assert "2 threads run where an engine is forked" in run(THREAD).stderr


@pytest.fixture
async def server() -> AsyncIterator[ForkServer]:
    """Its engines find no model. Two threads each: libraries may start theirs when imported."""
    server = ForkServer(settings_with(model="/nowhere", device="cpu", threads=2), "decode")
    yield server
    server.close()
    assert servers() == []


def servers() -> list[psutil.Process]:
    children = psutil.Process().children()
    return [child for child in children if "shared.worker.fork_server" in child.cmdline()]


def ask(server: ForkServer) -> tuple[ForkedProcess, socket.socket]:
    """An engine, and io's end of its channel."""
    (ours, channel), (asks, answers) = socket.socketpair(), data_socket_pair()
    with channel, answers, asks:
        return server.fork([channel.fileno(), answers.fileno()]), ours


async def test_one_engine_after_the_other_ends_with_its_own_status(server: ForkServer) -> None:
    """And the channel with it: nobody else holds it."""
    pids = []
    for _ in range(3):
        engine, ours = ask(server)
        assert await engine.wait() == 2
        with ours, pytest.raises(BatonError, match="/nowhere"):
            receive_memory(ours)
        pids.append(engine.pid)
        (process,) = servers()
        pids.append(process.pid)
    assert len(set(pids)) == 4, "three engines of one server"


async def test_an_engine_that_is_not_there_yet_never_will_be(server: ForkServer) -> None:
    engine, ours = ask(server)
    engine.send_signal(signal.SIGTERM)
    assert await engine.wait() == -signal.SIGKILL
    with ours:
        assert ours.recv(1) == b""
    assert engine.pid is None


async def test_a_server_that_is_killed_takes_its_engine_along_and_is_replaced(
    server: ForkServer,
) -> None:
    engine, ours = ask(server)
    with ours:
        (process,) = servers()
        process.kill()
        assert await engine.wait() == -signal.SIGKILL
    engine, ours = ask(server)
    with ours:
        assert await engine.wait() == 2


async def test_a_signal_to_one_whose_end_is_not_known_yet_does_nothing() -> None:
    engine = ForkedProcess(lambda: None)
    engine.note(int(run("import os; print(os.getpid())").stdout))
    engine.send_signal(signal.SIGTERM)
    engine.note(3)
    assert await engine.wait() == 3
