"""RedisClient against real servers that die, freeze, forget, fill up and come back."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from shared.errors import SettingsError, StateUnavailableError
from shared.queue.backlog import BacklogEntry
from shared.queue.redis_backlog import RedisBacklog
from shared.state.embedded import EmbeddedRedis
from shared.state.keys import Keys
from shared.state.records import Admission, AdmittedRequest, Outcome, RequestState
from shared.state.redis_client import MAX_CONNECTIONS, RedisClient, Script
from shared.state.redis_records import RedisRequestRecords
from tests.support.redis_server import server_binary, server_names

pytestmark = [pytest.mark.anyio, pytest.mark.clock]

REQUEST = AdmittedRequest("r1", "g.1", "acme", "pool", 100, 0)
DONE = Outcome(RequestState.DONE, "stop", 7, 0)
TIMEOUT_S = 0.4


@pytest.fixture(params=server_names())
def server(request: pytest.FixtureRequest) -> Iterator[EmbeddedRedis]:
    """A server of one test, which may kill it."""
    with EmbeddedRedis(server_binary(request.param)) as redis:
        yield redis


@pytest.fixture
async def client(server: EmbeddedRedis) -> AsyncIterator[RedisClient]:
    async with RedisClient(server.url, timeout_s=TIMEOUT_S) as client:
        yield client


async def refused_in_time(client: RedisClient) -> str:
    begin_s = time.monotonic()
    with pytest.raises(StateUnavailableError) as caught:
        await client.command("PING")
    assert time.monotonic() - begin_s < TIMEOUT_S + 0.5
    return str(caught.value)


async def test_a_killed_server_is_found_again_and_scripts_reload(
    server: EmbeddedRedis, client: RedisClient
) -> None:
    records = RedisRequestRecords(client, Keys("t"))
    await asyncio.gather(*(client.command("PING") for _ in range(8)))
    assert await records.admit(REQUEST) is Admission.ADMITTED
    os.kill(server.pid, signal.SIGKILL)
    await refused_in_time(client)
    server.restart()
    assert await records.read("r1") is None
    assert await records.admit(REQUEST) is Admission.ADMITTED
    assert (await records.finish(REQUEST, DONE)).written


async def test_a_call_waits_out_a_short_restart(server: EmbeddedRedis) -> None:
    async with RedisClient(server.url) as client:
        await client.command("PING")
        os.kill(server.pid, signal.SIGKILL)
        waiting = asyncio.create_task(client.command("PING"))
        while client.num_round_trips < 3:  # noqa: ASYNC110
            await asyncio.sleep(0)
        server.restart()
        assert await waiting == b"PONG"


async def test_a_frozen_server_costs_a_bounded_time(
    server: EmbeddedRedis, client: RedisClient
) -> None:
    await client.command("SET", "x", 1)
    os.kill(server.pid, signal.SIGSTOP)
    try:
        await refused_in_time(client)
    finally:
        os.kill(server.pid, signal.SIGCONT)
    assert await client.command("GET", "x") == b"1"


async def test_a_full_server_refuses_as_unavailable(
    server: EmbeddedRedis, client: RedisClient
) -> None:
    records = RedisRequestRecords(client, Keys("t"))
    await records.admit(REQUEST)
    await client.command("CONFIG", "SET", "maxmemory", 1)
    with pytest.raises(StateUnavailableError, match="memory"):
        await records.admit(AdmittedRequest("r2", "g.1", "acme", "pool", 100, 0))
    await client.command("CONFIG", "SET", "maxmemory", 0)
    assert (await records.finish(REQUEST, DONE)).written


async def test_a_replica_refuses_as_unavailable(server: EmbeddedRedis, client: RedisClient) -> None:
    await client.command("REPLICAOF", "127.0.0.1", 1)
    backlog = RedisBacklog(client, Keys("t"), "pool", 8)
    with pytest.raises(StateUnavailableError, match="refuses"):
        await backlog.put(BacklogEntry("r1", "g.1", "acme", 10))


async def test_scripts_flushed_by_somebody_reload(client: RedisClient) -> None:
    script = Script("answer", "return {KEYS[1], ARGV[1]}")
    for _ in range(2):
        assert await client.run(script, ["k"], [7]) == [b"k", b"7"]
        await client.command("SCRIPT", "FLUSH")


async def test_a_caller_that_gives_up_does_not_mix_up_answers(client: RedisClient) -> None:
    async def ask(n: int) -> None:
        try:
            async with asyncio.timeout(0.0001 * (n % 5)):
                assert await client.command("ECHO", str(n)) == str(n).encode()
        except TimeoutError:
            return

    for batch in range(10):
        await asyncio.gather(*(ask(batch * 40 + n) for n in range(40)))
    assert await client.command("ECHO", "end") == b"end"


async def test_more_callers_than_connections_all_get_through(client: RedisClient) -> None:
    answers = await asyncio.gather(*(client.command("ECHO", n) for n in range(200)))
    assert answers == [str(n).encode() for n in range(200)]


async def test_a_long_queue_of_ours_is_no_outage(client: RedisClient) -> None:
    """Each call answers in time; together they take longer than one may."""
    num_calls = MAX_CONNECTIONS * 4
    begin_s = time.monotonic()
    waits = [client.command("BLPOP", "nothing", "0.12") for _ in range(num_calls)]
    assert await asyncio.gather(*waits) == [None] * num_calls
    assert time.monotonic() - begin_s > TIMEOUT_S


async def test_a_long_queue_ends_with_the_outage_of_its_head(
    server: EmbeddedRedis, client: RedisClient
) -> None:
    await client.command("PING")
    os.kill(server.pid, signal.SIGKILL)
    begin_s = time.monotonic()
    calls = [client.command("PING") for _ in range(MAX_CONNECTIONS * 8)]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert time.monotonic() - begin_s < TIMEOUT_S + 0.5
    assert all(isinstance(answer, StateUnavailableError) for answer in answers)


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (("HGETALL", "text"), "WRONGTYPE"),
        (("GET",), "ResponseError"),
        (("EVAL", "return redis.error_reply('ERR upstream failure')", 0), "ResponseError"),
        (("EVAL", "return redis.error_reply('MOVED 3999 127.0.0.1:1')", 0), "MovedError"),
        (("EVAL", "return redis.call('HGETALL', 'text')", 0), "WRONGTYPE"),
    ],
)
async def test_an_answer_nobody_knows_is_unavailable_counted_and_logged_once(
    client: RedisClient, caplog: pytest.LogCaptureFixture, words: tuple[str | int, ...], kind: str
) -> None:
    await client.command("SET", "text", "x")
    for _ in range(3):
        with pytest.raises(StateUnavailableError, match="refuses"):
            await client.command(*words)
    assert client.errors == {kind: 3}
    assert len(caplog.records) == 2
    assert await client.command("GET", "text") == b"x"


async def test_what_is_no_redis_is_unavailable() -> None:
    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(proxy, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with RedisClient(f"redis://127.0.0.1:{port}", timeout_s=TIMEOUT_S) as client:
        with pytest.raises(StateUnavailableError):
            await client.command("PING")
        assert client.errors.total() == 1
    server.close()


async def test_a_url_of_another_kind_is_a_wrong_setting() -> None:
    with pytest.raises(SettingsError, match="--redis"):
        RedisClient("http://localhost")


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("redis://user:hidden@127.0.0.1:1/0", "127.0.0.1:1"),
        ("redis://127.0.0.1:1?password=hidden", "127.0.0.1:1"),
        ("unix:///nowhere/redis.sock?password=hidden", "/nowhere/redis.sock"),
    ],
)
async def test_who_is_away_is_named_without_the_password(url: str, place: str) -> None:
    async with RedisClient(url, timeout_s=0.1) as client:
        with pytest.raises(StateUnavailableError) as caught:
            await client.command("PING")
    assert str(caught.value).startswith(f"Redis at {place} does not answer (")
    assert str(caught.value).endswith("; check --redis")
