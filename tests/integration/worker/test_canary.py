"""A worker is ready once KV has moved between a peer and it, and was verified; until then it says
what is wrong, and with whom.

Guards: a pair whose KV does not arrive that the first user's request finds.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from shared.link.server import LinkServer, Peer
from shared.protocol import Assign, Hello, Load, Message, Ping, Pong, Refusal, Refuse
from shared.state.keys import Keys
from shared.state.redis_client import RedisClient
from shared.state.redis_registry import RedisWorkerRegistry
from shared.state.registry import WorkerEntry
from shared.transfer_address import TransferAddress
from shared.worker.canary.asked_worker import ROOM_S
from tests.integration.worker.conftest import Serve
from tests.support.fakes.proxy import DamagingProxy
from tests.support.next_release import build_next_release
from tests.support.pairs.gateway_process import free_port
from tests.support.pairs.worker_process import WorkerProcess

pytestmark = pytest.mark.anyio

HOST = "127.0.0.1"
LIMIT_S = 60.0
NO_LOAD = Load(10**6, 0, 0, 0, 8, 8, 0, 0)


class Probed:
    """A worker with probes."""

    def __init__(self, serve: Serve, role: str, **flags: object) -> None:
        self.port = free_port()
        self.process: WorkerProcess = serve(role, probe_port=self.port, **flags)
        self.name = self.process.worker_id

    async def ready(self) -> tuple[int, str]:
        """Status and body; 0 while nothing listens."""
        try:
            reader, writer = await asyncio.open_connection(HOST, self.port)
        except OSError:
            assert self.process.io.poll() is None, self.process.errors()
            return 0, ""
        writer.write(b"GET /ready HTTP/1.1\r\n\r\n")
        head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
        writer.close()
        return int(head.split()[1]), body

    async def until_ready(self) -> str:
        """What its log says of the canary."""
        await self._until(200, "")
        log = self.process.errors()
        (line,) = [line for line in log.splitlines() if "KV canary: " in line]
        return line.partition("KV canary: ")[2]

    async def until_not_ready(self, *because: str) -> None:
        for text in because:
            await self._until(503, text)

    async def _until(self, status: int, text: str) -> None:
        found = 0, ""
        try:
            async with asyncio.timeout(LIMIT_S):
                while found[0] != status or text not in found[1]:
                    found = await self.ready()
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"{found}: {self.process.errors()}") from None


@pytest.fixture
async def registry(redis_url: str) -> AsyncIterator[RedisWorkerRegistry]:
    async with RedisClient(redis_url) as client:
        yield RedisWorkerRegistry(client, Keys())


@pytest.mark.parametrize("way", ["tcp", "mapped", "nccl", "nixl"])
async def test_each_newcomer_moves_kv_as_a_hand_over_does(serve: Serve, way: str) -> None:
    """Decode pulls from prefill, whichever of them is new; the first worker pulls from itself where
    that way leads there."""
    first = Probed(serve, "prefill", transport=way)
    told = await first.until_ready()
    if way in ("tcp", "mapped"):
        assert "MiB to itself by " + way in told
    else:
        assert told == f"there is no peer to move one with, and {way} leads to no worker itself"
    decode = Probed(serve, "decode", transport=way)
    assert f"from {first.name} by {way} in" in await decode.until_ready()
    second = Probed(serve, "prefill", transport=way)
    assert f"to {decode.name} by {way} in" in await second.until_ready()
    decode.process.kill()
    first.process.kill()
    assert (await second.ready())[0] == 200, "once for an incarnation"


async def test_of_two_that_start_together_one_finds_the_other(serve: Serve) -> None:
    prefill, decode = Probed(serve, "prefill"), Probed(serve, "decode")
    told = [await prefill.until_ready(), await decode.until_ready()]
    assert not all("itself" in text for text in told), told


async def test_a_lone_decode_worker_pulls_from_itself_unless_it_hands_nothing_over(
    serve: Serve,
) -> None:
    lone, silent = Probed(serve, "decode"), Probed(serve, "decode", prefix_cache="false")
    assert "from itself by mapped" in await lone.until_ready()
    assert await silent.until_ready() == (
        "there is no peer to move one with, and it hands nothing over"
    )


async def test_kv_that_arrives_damaged_makes_nobody_ready_and_one_good_peer_does(
    serve: Serve, redis_url: str
) -> None:
    port = free_port()
    proxy = DamagingProxy(f"{HOST}:{port}")
    address = await proxy.start()
    try:
        damaged = Probed(
            serve, "prefill", transport="tcp", transfer_port=port, transfer_advertise=address
        )
        assert "to itself" in await damaged.until_ready()
        decode = Probed(serve, "decode", transport="tcp")
        await decode.until_not_ready(f"by tcp with {damaged.name}: ", "do not match their digests")
        await decode.until_not_ready("do not match their digests")
        listed_s = time.monotonic()
        while "digests" not in (await decode.process.entry(redis_url)).unready:
            assert time.monotonic() - listed_s < LIMIT_S, "for doctor to find"
        good = Probed(serve, "prefill", transport="tcp")
        assert "to itself" not in await good.until_ready()
        assert f"from {good.name} by tcp" in await decode.until_ready()
    finally:
        await proxy.close()


async def test_a_newcomer_that_cannot_be_pulled_from_is_not_ready(serve: Serve) -> None:
    """Although it can reach everybody itself."""
    decode = Probed(serve, "decode", transport="tcp")
    await decode.until_ready()
    nowhere = f"{HOST}:{free_port()}"
    newcomer = Probed(serve, "prefill", transport="tcp", transfer_advertise=nowhere)
    failed = f"with {decode.name}: {decode.name} fails (the source cannot be reached"
    await newcomer.until_not_ready(failed)


@asynccontextmanager
async def listed(registry: RedisWorkerRegistry, entry: WorkerEntry) -> AsyncIterator[None]:
    """In the registry, until the end of the context."""

    async def refresh() -> None:
        while True:
            await registry.register(entry)
            await asyncio.sleep(1)

    task = asyncio.create_task(refresh())
    try:
        yield
    finally:
        task.cancel()
        await registry.remove(entry.pool, entry.incarnation)


def entry_like(own: WorkerEntry, port: int, load: Load | None = None) -> WorkerEntry:
    """A prefill worker that a test plays."""
    return replace(
        own, worker_id="played", incarnation="played.1", role="prefill", port=port, load=load
    )


async def test_peers_that_refuse_or_are_not_there_do_not_make_it_ready(
    serve: Serve, registry: RedisWorkerRegistry, redis_url: str
) -> None:
    first = Probed(serve, "decode")
    own = await first.process.entry(redis_url)
    hello = Hello("prefill", "played.1", own.pool, (), NO_LOAD, TransferAddress(f"{HOST}:1"))

    def refuse(peer: Peer, message: Message) -> None:
        if isinstance(message, Assign):
            peer.send(Refuse(message.work.attempt, "played.1", reason[0]))

    reason: list[Refusal] = ["no_room"]
    server = LinkServer(lambda: hello, refuse, lambda _: None)
    port = await server.start(HOST, 0)
    async with listed(registry, entry_like(own, port)):
        assert "from itself" in await Probed(serve, "decode").until_ready(), "it is only full"
        reason[0] = "invalid"
        second = Probed(serve, "decode")
        await second.until_not_ready("with played: played takes no prompt (invalid)")
        await server.close()
        await second.until_not_ready(f"with played: worker at {HOST}:{port}")
    assert "from itself" in await second.until_ready(), "a peer that is gone is not waited for"


async def test_a_peer_where_it_waits_for_room_counts_as_none(
    serve: Serve, registry: RedisWorkerRegistry, redis_url: str
) -> None:
    """One that says nothing else waits for its verdict, as long as there is a limit for that."""
    own = await Probed(serve, "decode").process.entry(redis_url)
    hello = Hello("prefill", "played.1", own.pool, (), NO_LOAD, TransferAddress(f"{HOST}:1"))
    stages = {"queued": 1}

    def wait(peer: Peer, message: Message) -> None:
        if isinstance(message, Ping):
            peer.send(Pong(message.seq, NO_LOAD, stages=stages))

    server = LinkServer(lambda: hello, wait, lambda _: None)
    port = await server.start(HOST, 0)
    async with listed(registry, entry_like(own, port)):
        assert "from itself" in await Probed(serve, "decode").until_ready()
        stages.clear()
        silent = Probed(serve, "decode")
        await silent.until_not_ready("no KV canary has come yet")
        await asyncio.sleep(3 * ROOM_S)
        assert (await silent.ready())[0] == 503
        stopping_s = time.monotonic()
        silent.process.io.terminate()
        await asyncio.to_thread(silent.process.wait, 20.0)
        assert time.monotonic() - stopping_s < LIMIT_S / 6, "its own canary is not waited for"
    await server.close()


async def test_a_worker_of_one_place_does_not_wait_for_a_second_of_its_own(serve: Serve) -> None:
    """And no canary of its own keeps that one from users for longer."""
    lone = Probed(serve, "decode", max_num_seqs=1)
    assert "nor does KV come from itself" in await lone.until_ready()
    pair = Probed(serve, "prefill", max_num_seqs=1)
    assert f"to {lone.name}" in await pair.until_ready()


async def test_a_peer_that_drains_counts_as_none(
    serve: Serve, registry: RedisWorkerRegistry, redis_url: str
) -> None:
    own = await Probed(serve, "decode").process.entry(redis_url)
    async with listed(registry, entry_like(own, free_port(), replace(NO_LOAD, state="draining"))):
        assert "from itself" in await Probed(serve, "decode").until_ready()


async def test_workers_of_two_releases_move_canaries(serve: Serve, tmp_path: Path) -> None:
    root = build_next_release(tmp_path / "next")
    assert "itself" in await (older := Probed(serve, "prefill")).until_ready()
    assert f"from {older.name}" in await (newer := Probed(serve, "decode", root=root)).until_ready()
    assert f"to {newer.name}" in await Probed(serve, "prefill").until_ready()
