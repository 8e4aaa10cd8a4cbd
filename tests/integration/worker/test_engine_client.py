"""The io process's watch over its engine: what hangs is told from what computes, and is ended."""

import asyncio
import os
import signal
import subprocess
import sys
import time

import pytest

from shared.worker import engine_client
from shared.worker.engine_client import EngineClient
from shared.worker.fork_client import ForkedProcess, ForkServer
from tests.support.measured import Measured
from tests.support.settings import settings_with

pytestmark = [pytest.mark.anyio, pytest.mark.clock]

SILENCE_S = 0.5
NOTICED_S = 3.0
COMPUTES = "while True: pass"
WAITS = "import time; time.sleep(60)"


class Mute(EngineClient):
    """An engine that never says anything, started as `code`."""

    def __init__(self, device: str, code: str, silence_s: float = SILENCE_S) -> None:
        settings = settings_with(device=device, engine_silence_s=silence_s)
        super().__init__(settings, ForkServer(settings, "decode"))
        process = subprocess.Popen([sys.executable, "-c", code])  # noqa: S603 ourselves
        self._process = ForkedProcess(process.kill)
        self._process.note(process.pid)
        loop = asyncio.get_running_loop()
        loop.run_in_executor(None, process.wait).add_done_callback(self._note_end)

    def _note_end(self, waiting: "asyncio.Future[int]") -> None:
        assert self._process is not None
        self._process.note(waiting.result())


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_client, "LISTEN_S", 0.1)


@pytest.mark.parametrize(
    ("device", "code", "step_s", "hangs"),
    [
        ("cpu", WAITS, 60.0, True),
        ("cpu", COMPUTES, 0.0, False),
        ("cuda", COMPUTES, 0.01, True),
        ("cuda", WAITS, 60.0, False),
    ],
)
async def test_a_silent_engine_hangs_unless_it_computes(
    device: str, code: str, step_s: float, hangs: bool
) -> None:
    """Or, on a GPU, unless its step may take that long."""
    client = Mute(device, code)
    failing = asyncio.create_task(client.failure(step_s))
    try:
        done, _ = await asyncio.wait({failing}, timeout=NOTICED_S)
        assert bool(done) == hangs
        if hangs:
            assert f"(pid {client.pid}) answered nothing for 0.5 s" in str(failing.result())
            assert failing.result().exit_code == 1
    finally:
        await client.stop()
    if not hangs:
        assert "ended with status -15" in str(await failing)


async def test_a_stall_is_told_and_its_end_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long before the engine is ended for it."""
    monkeypatch.setattr(engine_client, "STALL_S", 0.4)
    client = Mute("cpu", COMPUTES, silence_s=60)
    told: list[bool] = []
    client.on_stall = told.append
    failing = asyncio.create_task(client.failure(0.0))
    for number, expected in ((signal.SIGSTOP, [True]), (signal.SIGCONT, [True, False])):
        os.kill(client.pid, number)
        async with asyncio.timeout(NOTICED_S):
            while told != expected:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    await client.stop()
    await failing


async def test_a_long_step_of_a_gpu_is_no_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_client, "STALL_S", 0.2)
    client = Mute("cuda", WAITS, silence_s=60)
    told: list[bool] = []
    client.on_stall = told.append
    failing = asyncio.create_task(client.failure(step_s=60.0))
    await asyncio.sleep(1.0)
    assert told == []
    await client.stop()
    await failing


async def test_a_stopped_engine_is_noticed_and_ended(measured: Measured) -> None:
    client = Mute("cpu", COMPUTES)
    os.kill(client.pid, signal.SIGSTOP)
    await asyncio.wait_for(client.failure(0.0), NOTICED_S)
    began_s = time.monotonic()
    await client.stop()
    limit_s = engine_client.STOP_LIMIT_S + 1.0
    measured.at_most("ended after", time.monotonic() - began_s, limit_s, "s")
    assert await client.wait() == -signal.SIGKILL


async def test_without_a_limit_only_its_end_ends_it() -> None:
    client = Mute("cpu", WAITS, silence_s=0.0)
    failing = asyncio.create_task(client.failure(0.0))
    done, _ = await asyncio.wait({failing}, timeout=2 * SILENCE_S)
    assert not done
    await client.stop()
    assert "ended with status -15" in str(await failing)
