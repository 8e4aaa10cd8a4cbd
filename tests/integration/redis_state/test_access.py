"""The key space splits by role: a worker's rights cover its work and no request record."""

from collections.abc import AsyncIterator, Iterator

import pytest

from shared.errors import StateUnavailableError
from shared.queue.backlog import BacklogEntry
from shared.state.embedded import EmbeddedRedis
from shared.state.keys import Keys
from shared.state.kv_events import KVEvent
from shared.state.records import AdmittedRequest, Outcome, RequestState
from shared.state.redis_client import RedisClient
from tests.integration.redis_state.backends import RedisBackend
from tests.integration.redis_state.test_registry_contract import ENTRY
from tests.support.redis_server import server_binary, server_names

pytestmark = [pytest.mark.anyio, pytest.mark.clock]

WORKER_RIGHTS = (
    *("on", ">secret", "resetkeys", "-@all", "+ping", "+evalsha", "+script|load", "+time"),
    *("~baton:1:workers*", "~baton:1:pools", "~baton:1:kv-*", "~baton:1:backlog-*"),
    *("+@hash", "+@sortedset", "+@set", "+@stream", "+expire", "+del"),
)
REQUEST = AdmittedRequest("r1", "g.1", "acme", "pool", 100, 0)


@pytest.fixture(params=server_names())
def server(request: pytest.FixtureRequest) -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis(server_binary(request.param)) as redis:
        yield redis


@pytest.fixture
async def worker(server: EmbeddedRedis) -> AsyncIterator[RedisBackend]:
    async with RedisClient(server.url) as admin:
        await admin.command("ACL", "SETUSER", "worker", *WORKER_RIGHTS)
        await RedisBackend(admin, Keys()).records.admit(REQUEST)
    async with RedisClient(f"unix://worker:secret@{server.socket_path}") as client:
        yield RedisBackend(client, Keys())


async def test_a_worker_can_do_its_work(server: EmbeddedRedis, worker: RedisBackend) -> None:
    await worker.registry().register(ENTRY)
    assert await worker.registry().list(ENTRY.pool) == (ENTRY,)
    assert await worker.kv_events().publish(KVEvent("w.1", 1, stored=(b"x" * 32,)))
    async with RedisClient(server.url) as gateway:
        await RedisBackend(gateway, Keys()).backlog().put(BacklogEntry("r1", "g.1", "acme", 10))
    assert await worker.backlog().pop() is not None


async def test_a_worker_cannot_touch_a_request(worker: RedisBackend) -> None:
    outcome = Outcome(RequestState.DONE, "stop", 1, 0)
    for attempt in (
        worker.records.read("r1"),
        worker.records.finish(REQUEST, outcome),
        worker.traffic.arrived(REQUEST.pool),
        worker.traffic.ended(REQUEST.pool),
        worker.scaling.of(REQUEST.pool),
        worker.records.reap("r1", "g.1", 0),
        worker.liveness.beat("g.1"),
        worker.liveness.live_requests("g.1"),
        worker.client.command("CONFIG", "GET", "dir"),
        worker.client.command("FLUSHALL"),
        worker.client.command("EVAL", "return 1", 0),
    ):
        with pytest.raises(StateUnavailableError, match=r"permission|ACL"):
            await attempt


async def test_a_wrong_password_is_no_endless_wait(server: EmbeddedRedis) -> None:
    url = f"unix://worker:wrong@{server.socket_path}"
    async with RedisClient(url, timeout_s=0.3) as client:
        with pytest.raises(StateUnavailableError) as refused:
            await client.command("PING")
    told = str(refused.value)
    assert told.startswith(f"Redis at {server.socket_path} wants its password: ")
    assert "BATON_REDIS" in told and "wrong" not in told
