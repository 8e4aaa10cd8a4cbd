"""`baton doctor` on a cell with planted faults, and on one without: a real Redis, the gateway's
HTTP, workers with real link and KV ports."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal

import anyio
import pytest

from services.cli.__main__ import main
from services.cli.doctor import dial
from services.cli.doctor.cell import WaysIn, check_cell
from services.cli.doctor.finding import Finding
from shared.challenge import Versions
from shared.kv.layout import KVLayout, pool_name
from shared.link.server import LinkServer
from shared.protocol import Hello, Load
from shared.release import release
from shared.state.embedded import EmbeddedRedis
from shared.state.keys import Keys
from shared.state.redis_client import RedisClient
from shared.state.redis_registry import RedisWorkerRegistry
from shared.state.registry import WorkerEntry
from shared.transfer_address import NOWHERE, TransferAddress
from tests.support.fakes.served_app import ServedApp, serve_app
from tests.support.introduction import introduce
from tests.support.models.text_models import byte_level_tokenizer, write_text_model
from tests.support.redis_server import ON_PATH, server_binary

pytestmark = pytest.mark.anyio

HOST = "127.0.0.1"
SECRET = "the secret of this cell"  # noqa: S105 a made-up one
LAYOUT = KVLayout("weights", "float32", 2, 2, 2, 8, 16)
IDLE = Load(4096, 0, 0, 0, 100, 100, 0, 0)


@dataclass
class Worker:
    """A worker's ports without a worker; `entry` is what it registers."""

    entry: WorkerEntry
    server: LinkServer
    address: TransferAddress = NOWHERE
    load: Load = IDLE

    @property
    def hello(self) -> Hello:
        entry = self.entry
        return Hello(
            entry.role,
            entry.incarnation,
            entry.pool,
            load=self.load,
            transfer_address=self.address,
            host=socket.gethostname(),
        )


@dataclass
class Cell:
    """A gateway that is linked to two workers, which registered in its Redis."""

    redis: EmbeddedRedis
    client: RedisClient
    gateway: ServedApp
    workers: dict[str, Worker] = field(default_factory=dict)

    @property
    def ways(self) -> WaysIn:
        return WaysIn(self.gateway.url, "", self.redis.url, SECRET)

    async def register(self, entry: WorkerEntry) -> None:
        await RedisWorkerRegistry(self.client, Keys(), ttl_s=60).register(entry)

    async def look(self, **ways: str) -> list[Finding]:
        return await anyio.to_thread.run_sync(check_cell, replace(self.ways, **ways))

    async def faults(self, **ways: str) -> dict[str, str]:
        """Check -> its line."""
        return {each.check: str(each) for each in await self.look(**ways) if each.level != "ok"}


async def start_worker(role: Literal["prefill", "decode"], kv_port: int) -> Worker:
    server = LinkServer(lambda: worker.hello, lambda *_: None, lambda _: None, cell_secret=SECRET)
    port = await server.start(HOST, 0)
    entry = WorkerEntry(
        worker_id=f"{role}-0",
        incarnation=f"{role}-0.{'1' * 32}",
        role=role,
        host=HOST,
        port=port,
        pool=pool_name("demo", LAYOUT),
        pid=1,
        version=release(),
        model="demo",
        max_model_len=99,
        block_size=LAYOUT.block_size,
    )
    address = TransferAddress(f"{HOST}:{kv_port}") if role == "prefill" else NOWHERE
    worker = Worker(entry, server, address)
    return worker


async def prove_and_listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A KV port as far as the challenge."""
    await introduce(reader, writer, "pull", dials=False, cell_secret=SECRET)
    await reader.read()
    writer.close()


def free_port() -> int:
    with socket.create_server((HOST, 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


@pytest.fixture(scope="module")
def own_redis() -> Iterator[EmbeddedRedis]:
    """Of these tests alone: they fill it and change its policy."""
    with EmbeddedRedis(server_binary(ON_PATH)) as server:
        yield server


@pytest.fixture(scope="module")
async def running(
    own_redis: EmbeddedRedis, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Cell]:
    tokenizer = byte_level_tokenizer()
    folder = write_text_model(tmp_path_factory.mktemp("model"), tokenizer)
    kv = await asyncio.start_server(prove_and_listen, HOST, 0)
    kv_port = kv.sockets[0].getsockname()[1]
    async with serve_app(folder, tokenizer) as gateway, RedisClient(own_redis.url) as client, kv:
        cell = Cell(own_redis, client, gateway)
        for role in ("prefill", "decode"):
            cell.workers[role] = await start_worker(role, kv_port)
        yield cell
        for worker in cell.workers.values():
            await worker.server.close()


@pytest.fixture
async def cell(running: Cell) -> AsyncIterator[Cell]:
    """The one cell, healthy at the start of each test."""
    before = {role: replace(worker) for role, worker in running.workers.items()}
    shown = [
        {"id": worker.entry.worker_id, "incarnation": worker.entry.incarnation, "host": "here"}
        for worker in running.workers.values()
    ]
    running.gateway.door.shown.update(version=release(), model="demo", workers=shown)
    for worker in running.workers.values():
        await running.register(worker.entry)
    yield running
    for role, worker in running.workers.items():
        worker.address, worker.load = before[role].address, before[role].load
    await running.gateway.door.reset()
    await running.client.command("CONFIG", "SET", "maxmemory", "0")
    await running.client.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
    await running.client.command("FLUSHALL")


async def test_a_healthy_cell_gets_neither_warn_nor_fail(cell: Cell) -> None:
    pair = {"prefill": "prefill-0", "decode": "decode-0", "transport": "mapped", "why": "read"}
    cell.gateway.door.shown["hand_overs"] = [pair]
    found = await cell.look()
    assert not [str(each) for each in found if each.level != "ok"]
    assert {"gateway", "prefill-0 -> decode-0", "Redis", "clock", "worker prefill-0"} <= {
        each.check for each in found
    }


async def test_a_redis_that_is_away(cell: Cell, tmp_path: Path) -> None:
    faults = await cell.faults(redis=f"unix://{tmp_path}/none")
    assert list(faults) == ["Redis"]
    assert faults["Redis"].startswith("FAIL")
    assert "start it, open its port" in faults["Redis"]


async def test_a_redis_that_would_forget(cell: Cell) -> None:
    await cell.client.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    assert (await cell.faults())["Redis policy"].startswith("warn")
    await cell.client.command("CONFIG", "SET", "maxmemory", "1gb")
    faults = await cell.faults()
    assert list(faults) == ["Redis policy"]
    assert faults["Redis policy"].startswith("FAIL")
    assert "CONFIG SET maxmemory-policy noeviction" in faults["Redis policy"]


async def test_a_redis_that_is_full(cell: Cell) -> None:
    await cell.client.command("CONFIG", "SET", "maxmemory", "1")
    faults = await cell.faults()
    assert list(faults) == ["Redis memory"]
    assert faults["Redis memory"].startswith("FAIL")
    assert "a higher maxmemory" in faults["Redis memory"]


async def test_another_password_and_a_user_with_few_rights(cell: Cell) -> None:
    path = cell.redis.socket_path
    faults = await cell.faults(redis=f"unix://:other@{path}")
    assert list(faults) == ["Redis"]
    assert "the right one in --redis" in faults["Redis"]
    rights = ("on", ">word", "~*", "+@all", "-info")
    await cell.client.command("ACL", "SETUSER", "few", *rights)
    faults = await cell.faults(redis=f"unix://few:word@{path}")
    assert list(faults) == ["Redis"]
    assert faults["Redis"].startswith("warn")


async def test_another_cell_secret(cell: Cell) -> None:
    faults = await cell.faults(cell_secret=SECRET[::-1])
    assert list(faults) == ["worker decode-0", "worker prefill-0"]
    assert all(line.startswith("FAIL") for line in faults.values())
    assert all("same BATON_CELL_SECRET" in line for line in faults.values())


async def test_workers_too_many_versions_away(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dial, "SPOKEN", Versions(3, 3))
    faults = await cell.faults()
    assert list(faults) == ["worker decode-0", "worker prefill-0"]
    assert all(line.startswith("FAIL") for line in faults.values())
    assert all(", this is version 3: upgrade one version" in line for line in faults.values())
    assert all("at most one version apart" in line for line in faults.values())


async def test_without_a_secret_the_ports_are_tried_and_nothing_fails(cell: Cell) -> None:
    assert not await cell.faults(cell_secret="")


@pytest.mark.parametrize(
    ("layout", "model", "level", "cure"),
    [
        (replace(LAYOUT, block_size=32), "demo", "FAIL", "--block-size 16"),
        (replace(LAYOUT, dtype="float16"), "demo", "FAIL", "KV type: the gateway uses"),
        (replace(LAYOUT, dtype="float16"), "demo", "FAIL", "the same --dtype and --device for all"),
        (replace(LAYOUT, model="tuned"), "demo", "FAIL", "one checkpoint for all workers"),
        (LAYOUT, "other", "warn", "the same --model"),
    ],
)
async def test_a_worker_of_another_pool(
    cell: Cell, layout: KVLayout, model: str, level: str, cure: str
) -> None:
    known = cell.workers["decode"]
    entry = replace(
        known.entry,
        worker_id="stray",
        pool=pool_name(model, layout),
        model=model,
        block_size=layout.block_size,
    )
    await cell.register(entry)
    faults = await cell.faults()
    assert list(faults) == ["worker stray"]
    assert faults["worker stray"].startswith(level)
    assert cure in faults["worker stray"]


async def test_a_kv_port_that_nobody_reaches(cell: Cell) -> None:
    cell.workers["prefill"].address = TransferAddress(f"{HOST}:{free_port()}")
    faults = await cell.faults()
    assert list(faults) == ["worker prefill-0"]
    assert faults["worker prefill-0"].startswith("FAIL")
    assert "open --transfer-port" in faults["worker prefill-0"]


async def test_a_kv_socket_that_is_not_there(cell: Cell, tmp_path: Path) -> None:
    gone = str(tmp_path / "gone.sock")
    cell.workers["prefill"].address = TransferAddress(socket=gone)
    assert "mount its --transfer-dir" in (await cell.faults())["worker prefill-0"]


async def test_a_link_port_that_nobody_reaches_or_that_is_no_worker(cell: Cell) -> None:
    entry = cell.workers["decode"].entry
    await cell.register(replace(entry, port=free_port()))
    assert "--worker-advertise" in (await cell.faults())["worker decode-0"]
    port = int(cell.gateway.address[1])
    await cell.register(replace(entry, port=port))
    faults = await cell.faults()
    assert list(faults) == ["worker decode-0"]
    assert "does not greet as a Baton" in faults["worker decode-0"]


async def test_a_worker_that_drains_and_one_that_is_not_linked(cell: Cell) -> None:
    cell.workers["decode"].load = replace(IDLE, state="draining")
    assert "is draining" in (await cell.faults())["worker decode-0"]
    cell.workers["decode"].load = IDLE
    cell.gateway.door.shown["workers"].pop()
    assert "has no link to it" in (await cell.faults())["worker decode-0"]


async def test_no_worker_and_no_gateway_that_is_ready(cell: Cell) -> None:
    await cell.client.command("FLUSHALL")
    cell.gateway.door.is_ready = False
    faults = await cell.faults()
    assert list(faults) == ["gateway", "registry"]
    assert faults["gateway"].startswith("FAIL")
    assert "no decode worker is linked" in faults["gateway"]
    assert "baton serve decode" in faults["registry"]
    assert not await cell.faults(url="")  # before the first start, that is no fault of a Redis


async def test_the_command_looks_where_it_is_told(
    cell: Cell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """--url alone sees the gateway; variables add Redis and the workers; nobody there is a FAIL."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "60")
    run = partial(anyio.to_thread.run_sync, main)
    assert await run(["doctor", "--url", f"{cell.gateway.url}/v1"]) == 0
    assert "ok, says the gateway" in capsys.readouterr().out
    monkeypatch.setenv("BATON_REDIS", cell.redis.url)
    monkeypatch.setenv("BATON_CELL_SECRET", SECRET)
    assert await run(["doctor", "--url", cell.gateway.url]) == 0
    shown = capsys.readouterr().out
    assert "worker prefill-0" in shown
    assert max(map(len, shown.splitlines())) <= 60
    with closing(socket.socket()):
        assert await run(["doctor", "--url", f"http://{HOST}:{free_port()}"]) == 1
    assert "baton up" in " ".join(capsys.readouterr().out.split())
    for wait_s, num_unready, code in (("0.1", 999, 1), ("30", 3, 0)):
        cell.gateway.door.num_unready = num_unready
        assert await run(["doctor", "--wait-s", wait_s, "--url", cell.gateway.url]) == code
    cell.gateway.door.num_unready = 0
    assert await run(["doctor", "--redis", "nonsense", "--url", cell.gateway.url]) == 2
    assert await run(["doctor", "--nothing"]) == 2
