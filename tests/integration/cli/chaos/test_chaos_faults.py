"""Faults of real processes and a real Redis: each is seen to happen, or said not to have."""

import asyncio
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest

from services.cli.chaos import process_faults, redis_faults
from services.cli.chaos.cell import Cell, Worker
from services.cli.chaos.fault import NotInjectedError, Scene, is_gone, is_stopped, until
from services.cli.chaos.load import Load
from shared.state.embedded import EmbeddedRedis
from shared.state.redis_client import RedisClient

pytestmark = pytest.mark.anyio


@pytest.fixture
def process() -> Iterator["subprocess.Popen[bytes]"]:
    made = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield made
    made.kill()
    made.wait()


@pytest.fixture(scope="module")
def redis() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis() as server:
        yield server


def scene(cell: object) -> Scene:
    return Scene(cast(Cell, cell), Load([], "m", random.Random(1)), random.Random(2))  # noqa: S311


def worker_of(pid: int, name: str = "decode-0") -> Worker:
    child: Any = SimpleNamespace(pid=pid, spec=SimpleNamespace(name=name))
    return Worker(child, "decode")


class Workers:
    """Stands in for a cell whose workers are these."""

    def __init__(self, *workers: Worker, spared: frozenset[str] = frozenset()) -> None:
        self.workers = workers
        self.gateways = ()
        self.spared = spared
        self.exits: dict[str, int] = {worker.name: 0 for worker in workers}

    async def ready(self) -> dict[str, list[Worker]]:
        return {"prefill": [], "decode": list(self.workers)}


async def test_what_does_not_happen_is_an_error() -> None:
    with pytest.raises(NotInjectedError, match=r"not seen within 0\.05 s: rain"):
        await until("rain", lambda: False, 0.05)


async def test_a_worker_is_frozen_and_goes_on(process: "subprocess.Popen[bytes]") -> None:
    one = worker_of(process.pid)
    found = psutil.Process(process.pid)
    freezing = asyncio.create_task(process_faults.freeze_worker(scene(Workers(one, one))))
    await until("frozen", lambda: is_stopped(found))
    told = await freezing
    assert told is not None
    assert told.startswith("decode-0: frozen for")
    assert not is_stopped(found)


async def test_a_worker_is_killed_and_its_exit_counted(process: "subprocess.Popen[bytes]") -> None:
    cell = Workers(worker_of(process.pid), worker_of(process.pid))
    assert await process_faults.kill_worker(scene(cell)) is not None
    assert is_gone(psutil.Process(process.pid)) or process.wait(1) == -signal.SIGKILL
    assert cell.exits == {"decode-0": 1}


async def test_the_only_worker_of_a_role_is_left_alone(process: "subprocess.Popen[bytes]") -> None:
    cell = Workers(worker_of(process.pid))
    for fault in (process_faults.kill_worker, process_faults.freeze_worker):
        assert await fault(scene(cell)) is None
    assert process.poll() is None


async def test_nothing_happens_to_a_spared_worker(process: "subprocess.Popen[bytes]") -> None:
    one, other = worker_of(process.pid), worker_of(process.pid, "decode-1")
    cell = Workers(one, other, spared=frozenset({"decode-0"}))
    for seed in range(20):
        numbers = random.Random(seed)  # noqa: S311
        drawing = scene(cell)._replace(numbers=numbers)
        assert process_faults._spare(drawing, await cell.ready()) == other
    cell.spared = frozenset({"decode-0", "decode-1"})
    for fault in (
        process_faults.kill_engine,
        process_faults.kill_worker,
        process_faults.freeze_engine,
    ):
        assert await fault(scene(cell)) is None
    assert process.poll() is None


async def test_a_process_has_no_more_descriptors_for_a_while(
    process: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_faults, "DESCRIPTORS_S", (0.2, 0.2))
    found = psutil.Process(process.pid)
    before = found.rlimit(psutil.RLIMIT_NOFILE)
    cell = Workers(worker_of(process.pid))
    limiting = asyncio.create_task(process_faults.no_descriptors(scene(cell)))
    await until("limited", lambda: found.rlimit(psutil.RLIMIT_NOFILE)[0] < before[0])
    assert await limiting is not None
    assert found.rlimit(psutil.RLIMIT_NOFILE) == before


class RedisCell:
    """Stands in for a cell, of which these faults touch only Redis."""

    def __init__(self, redis: EmbeddedRedis) -> None:
        self.redis = redis
        self.state = RedisClient(redis.url)
        self.data_losses_s: list[float] = []


@pytest.fixture
async def cell(redis: EmbeddedRedis) -> AsyncIterator[RedisCell]:
    made = RedisCell(redis)
    with redis.connect():  # another one's
        yield made
    await made.state.close()


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (redis_faults.fill, "maxmemory 1 for"),
        (redis_faults.take_no_writes, "min-replicas-to-write 1 for"),
        (redis_faults.slow_down, "commands took up to"),
        (redis_faults.hang_up, "connections closed"),
        (redis_faults.freeze_server, "frozen for"),
        (redis_faults.empty, "FLUSHALL"),
    ],
)
async def test_redis_is_broken_and_mended(
    fault: Any, says: str, cell: RedisCell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_faults, "AWAY_S", (0.2, 0.3))
    await cell.state.command("SET", "here", "1")
    assert says in await fault(scene(cell))
    assert (await cell.state.command("GET", "here") is None) == bool(cell.data_losses_s)
    await cell.state.command("SET", "here", "1")


async def test_a_redis_that_takes_writes_all_the_same_is_noticed(cell: RedisCell) -> None:
    with pytest.raises(NotInjectedError, match="writes are taken"):
        await redis_faults._refusing(scene(cell), "maxmemory", "0", "0", "maxmemory")


async def test_a_dead_redis_is_seen(cell: RedisCell) -> None:
    assert await redis_faults.kill(scene(cell)) == "kill -9"
    await until("reaped", lambda: not cell.redis.running)
    assert len(cell.data_losses_s) == 1
    cell.redis.restart()


def test_an_exit_that_no_fault_caused_is_found_once() -> None:
    ended, killed, gave_up = (worker_of(1, name) for name in ("decode-0", "decode-1", "decode-2"))
    for one, ends in (
        (ended, ["decode-0 ended with status 1: no memory"]),
        (killed, ["decode-1 was ended by SIGKILL"]),
        (gave_up, ["decode-2 ended with status 1: the engine process ended with status -11"]),
    ):
        one.child.ends = ends
    made = Cell([], [ended, killed, gave_up], cast(Any, None), cast(Any, None))
    made.exits["decode-1"] += 1
    assert made.unexplained_exits() == ["decode-0 ended 1 times, 0 of them by a fault"]
    assert not made.unexplained_exits()
