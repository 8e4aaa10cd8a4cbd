"""A worker's standing in Redis: it comes back by itself, and it pulls waiting work."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from shared.kv.layout import KVLayout
from shared.loops import Loops
from shared.protocol import Attempt, Message, Pull
from shared.queue.backlog import BacklogEntry
from shared.queue.redis_backlog import RedisBacklog
from shared.state.embedded import EmbeddedRedis
from shared.state.keys import Keys
from shared.state.kv_feed import KVPublisher
from shared.state.redis_client import RedisClient
from shared.state.redis_kv_events import RedisKVEvents
from shared.state.redis_registry import RedisWorkerRegistry
from shared.state.registry import REFRESH_INTERVAL_S, WorkerEntry
from shared.worker.attempts.table import HeldAttempt
from shared.worker.backlog_puller import BacklogPuller
from shared.worker.registration import Registration
from shared.worker.state import WorkerState
from tests.support.pairs.worker_pair import RecordingPeer

pytestmark = [pytest.mark.anyio, pytest.mark.clock]
BACK_WITHIN_S = 1.5
"""the refresh is every second; 0.5 s for a machine that is busy"""
INC = "w.1"
LAYOUT = KVLayout("m", "float32", 1, 2, 1, 2, 4)
ENTRY = WorkerEntry(
    worker_id="w",
    incarnation=INC,
    role="decode",
    host="127.0.0.1",
    port=1,
    pool="pool",
    pid=os.getpid(),
    version="0",
    model="m",
    max_model_len=64,
    block_size=16,
)


@pytest.fixture
def own_redis() -> Iterator[EmbeddedRedis]:
    """A server that this test may kill."""
    with EmbeddedRedis() as server:
        yield server


@pytest.fixture
async def client(own_redis: EmbeddedRedis) -> AsyncIterator[RedisClient]:
    async with RedisClient(own_redis.url, timeout_s=0.5) as client:
        yield client


async def becomes(ask: Callable[[], Awaitable[bool]], limit_s: float) -> float:
    """Seconds until it was true."""
    start_s = time.monotonic()
    while not await ask():
        assert time.monotonic() - start_s < limit_s, "it never became true"
        await asyncio.sleep(0.01)
    return time.monotonic() - start_s


class Standing:
    """A registration with its two loops."""

    def __init__(self, client: RedisClient) -> None:
        self.events = RedisKVEvents(client, Keys())
        self.publisher = KVPublisher(self.events, INC, stride=1)
        self.registry = RedisWorkerRegistry(client, Keys())
        self.asked: list[bool] = []
        """to drain, by refresh"""
        self.registration = Registration(
            self.registry, lambda: ENTRY, self.publisher, self.asked.append
        )

    async def __aenter__(self) -> "Standing":
        self.loops = Loops()
        self.registration.start(self.loops)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.loops.close()

    async def is_listed(self) -> bool:
        return [entry.incarnation for entry in await self.registry.list("pool")] == [INC]

    async def is_asked(self, wanted: bool) -> bool:
        return self.asked[-1:] == [wanted]

    async def holds(self, *hashes: bytes) -> bool:
        return (await self.events.snapshot(INC)).held == frozenset(hashes)


async def test_a_worker_is_listed_again_soon_after_redis_comes_back(
    own_redis: EmbeddedRedis, client: RedisClient
) -> None:
    async with Standing(client) as standing:
        await becomes(standing.is_listed, 1.0)
        standing.publisher.note([(b"a" * 32, 1)], [])
        await becomes(lambda: standing.holds(b"a" * 32), 1.0)
        os.kill(own_redis.pid, signal.SIGKILL)
        standing.publisher.note([(b"b" * 32, 1)], [])
        await asyncio.sleep(REFRESH_INTERVAL_S + 0.1)  # a refresh has failed
        assert standing.registration.is_known, "without Redis it is no less ready"
        await asyncio.get_running_loop().run_in_executor(None, own_redis.restart)
        await becomes(standing.is_listed, BACK_WITHIN_S)
        await becomes(lambda: standing.holds(b"a" * 32, b"b" * 32), BACK_WITHIN_S)
        assert standing.loops.trouble() == ""


async def test_a_drain_ends_when_redis_goes(own_redis: EmbeddedRedis, client: RedisClient) -> None:
    """Whoever asked for it could not take it back."""
    async with Standing(client) as standing:
        await becomes(standing.is_listed, 1.0)
        await standing.registry.drain("pool", INC, 30)
        await becomes(lambda: standing.is_asked(True), 2 * REFRESH_INTERVAL_S)
        os.kill(own_redis.pid, signal.SIGKILL)
        await becomes(lambda: standing.is_asked(False), BACK_WITHIN_S)


async def test_who_withdraws_is_not_listed_again(client: RedisClient) -> None:
    async with Standing(client) as standing:
        await becomes(standing.is_listed, 1.0)
        await standing.registration.withdraw()
        await standing.registration.withdraw()
        assert not standing.registration.is_known
        await asyncio.sleep(REFRESH_INTERVAL_S + 0.1)  # the next refresh does nothing
        assert not await standing.is_listed()


async def test_withdrawing_while_redis_is_away_is_no_failure(
    own_redis: EmbeddedRedis, client: RedisClient
) -> None:
    async with Standing(client) as standing:
        await becomes(standing.is_listed, 1.0)
        os.kill(own_redis.pid, signal.SIGKILL)
        await standing.registration.withdraw()


class Pulling:
    """A puller with one gateway."""

    def __init__(self, client: RedisClient) -> None:
        self.state = WorkerState(INC, 64, LAYOUT)
        self.backlog = RedisBacklog(client, Keys(), "pool", 16)
        publisher = KVPublisher(RedisKVEvents(client, Keys()), INC)
        self.peer = RecordingPeer()
        self.puller = BacklogPuller(self.state, self.backlog, publisher, lambda: [self.peer])

    async def __aenter__(self) -> "Pulling":
        self.loops = Loops()
        self.puller.start(self.loops)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.loops.close()

    async def wait_for(self, rid: str, num_tokens: int = 5) -> None:
        await self.backlog.put(BacklogEntry(rid, self.peer.incarnation, "tenant", num_tokens))

    def hold(self, rid: str, num_tokens: int) -> HeldAttempt:
        """A prompt that has not begun."""
        attempt = HeldAttempt(Attempt(rid, 0), self.peer, "", num_tokens, accepted_ns=1)
        self.state.attempts.hold(attempt)
        return attempt

    async def has_pulled(self, *rids: str) -> bool:
        wanted: list[Message] = [Pull(rid, INC) for rid in rids]
        return self.peer.sent == wanted

    @property
    def num_pops(self) -> int:
        return self.state.counters.get("backlog_pops", 0)


async def test_redis_is_asked_only_when_a_gateway_says_that_requests_wait(
    client: RedisClient,
) -> None:
    async with Pulling(client) as pulling:
        await pulling.wait_for("a")
        pulling.puller.note(pulling.peer, 0)
        await asyncio.sleep(0.1)
        assert pulling.num_pops == 0
        pulling.puller.note(pulling.peer, 1)
        await becomes(lambda: pulling.has_pulled("a"), 1.0)


async def test_popping_ends_with_the_backlog_and_begins_with_the_next_word(
    client: RedisClient,
) -> None:
    async with Pulling(client) as pulling:
        for rid in ("a", "b"):
            await pulling.wait_for(rid)
        pulling.puller.note(pulling.peer, 2)
        await becomes(lambda: pulling.has_pulled("a", "b"), 1.0)
        await asyncio.sleep(0.1)
        assert pulling.num_pops == 3
        await asyncio.sleep(0.1)
        assert pulling.num_pops == 3
        await pulling.wait_for("c")
        pulling.puller.note(pulling.peer, 1)
        await becomes(lambda: pulling.has_pulled("a", "b", "c"), 1.0)


@pytest.mark.parametrize("draining", [False, True])
async def test_a_full_or_draining_worker_pulls_nothing(client: RedisClient, draining: bool) -> None:
    async with Pulling(client) as pulling:
        await pulling.wait_for("a")
        pulling.state.leaving = draining
        full = [] if draining else [pulling.hold("short", 32), pulling.hold("long", 1000)]
        pulling.puller.note(pulling.peer, 1)
        await asyncio.sleep(0.1)
        assert pulling.num_pops == 0
        pulling.state.leaving = False
        for held in full:
            pulling.state.attempts.drop(held.attempt)
        pulling.puller.note(pulling.peer, 1)
        await becomes(lambda: pulling.has_pulled("a"), 1.0)


async def test_little_room_takes_one_request_out_of_the_order_of_all(client: RedisClient) -> None:
    """Which finds no room here; the others keep their turns until there is some."""
    async with Pulling(client) as pulling:
        waits = [pulling.hold(rid, 31) for rid in ("waits", "too")]
        for rid in ("a", "b", "c"):
            await pulling.wait_for(rid)
        pulling.puller.note(pulling.peer, 3)
        await becomes(lambda: pulling.has_pulled("a"), 1.0)
        await asyncio.sleep(0.3)
        assert await pulling.has_pulled("a")
        for held in waits:
            pulling.state.attempts.drop(held.attempt)
        await becomes(lambda: pulling.has_pulled("a", "b", "c"), 1.0)


@pytest.mark.parametrize("needed", [0, 32])
async def test_a_long_one_is_pulled_to_its_place_whatever_short_ones_wait_here(
    client: RedisClient, needed: int
) -> None:
    """`needed`: room that the last short one wanted in vain; there is less."""
    async with Pulling(client) as pulling:
        for rid, num_tokens in (("s0", 32), ("s1", 32 - needed // 4)):
            pulling.hold(rid, num_tokens)
        if needed:
            await pulling.wait_for("short", needed)
            pulling.puller.note(pulling.peer, 1)
            await becomes(lambda: pulling.has_pulled("short"), 1.0)
        await pulling.wait_for("long", 1000)
        await pulling.wait_for("later")
        pulling.puller.note(pulling.peer, 2)
        pulled = ["short", "long"] if needed else ["long"]
        await becomes(lambda: pulling.has_pulled(*pulled), 1.0)
        await asyncio.sleep(0.3)
        assert await pulling.has_pulled(*pulled), "a short one has no room here"


async def test_what_another_worker_made_way_for_is_pulled_without_a_word(
    client: RedisClient,
) -> None:
    async with Pulling(client) as pulling:
        pulling.hold("first", 1000)
        incarnation = pulling.peer.incarnation
        await pulling.backlog.put(BacklogEntry("long", incarnation, "one", 40))
        for rid in ("a", "b", "c", "d"):
            await pulling.backlog.put(BacklogEntry(rid, incarnation, "other", 30))
        pulling.puller.note(pulling.peer, 5)
        await becomes(lambda: pulling.has_pulled("a", "b"), 1.0)
        await asyncio.sleep(0.2)
        assert await pulling.has_pulled("a", "b"), "the other tenant has had its part"
        taken = await pulling.backlog.pop()
        assert taken is not None and taken.rid == "long"
        await becomes(lambda: pulling.has_pulled("a", "b", "c", "d"), 1.0)


async def test_a_word_that_comes_while_redis_answers_is_not_lost(
    client: RedisClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Pulling(client) as pulling:
        pulling.hold("first", 1000)
        await pulling.wait_for("long", 1000)
        pop = pulling.backlog.pop

        async def answers_late(*asked: Any) -> BacklogEntry | None:
            found = await pop(*asked)
            monkeypatch.undo()
            await pulling.wait_for("short")
            pulling.puller.note(pulling.peer, 2)
            return found

        monkeypatch.setattr(pulling.backlog, "pop", answers_late)
        pulling.puller.note(pulling.peer, 1)
        await becomes(lambda: pulling.has_pulled("short"), 0.09)


async def test_short_ones_are_pulled_past_a_long_one_that_has_no_place_here(
    client: RedisClient,
) -> None:
    """Which is pulled once there is one, without a word of its gateway."""
    async with Pulling(client) as pulling:
        first = pulling.hold("first", 1000)
        await pulling.wait_for("long", 33)
        for rid in ("a", "b"):
            await pulling.wait_for(rid)
        pulling.puller.note(pulling.peer, 3)
        await becomes(lambda: pulling.has_pulled("a", "b"), 1.0)
        await asyncio.sleep(0.1)
        assert pulling.num_pops == 3, "asked once for what is not there"
        first.started_ns = 1
        await becomes(lambda: pulling.has_pulled("a", "b", "long"), 1.0)


async def test_a_new_word_is_asked_about_while_a_long_one_waits(client: RedisClient) -> None:
    async with Pulling(client) as pulling:
        pulling.hold("first", 1000)
        await pulling.wait_for("long", 33)
        pulling.puller.note(pulling.peer, 1)
        await asyncio.sleep(0.1)
        await pulling.wait_for("short")
        pulling.puller.note(pulling.peer, 2)
        await becomes(lambda: pulling.has_pulled("short"), 1.0)


async def test_a_long_one_needs_its_place_alone(client: RedisClient) -> None:
    """What is pulled next does not wait for room for all of it."""
    async with Pulling(client) as pulling:
        pulling.hold("short", 32)
        await pulling.wait_for("long", 1000)
        await pulling.wait_for("next")
        pulling.puller.note(pulling.peer, 2)
        await becomes(lambda: pulling.has_pulled("long", "next"), 1.0)


async def test_a_puller_outlives_redis(own_redis: EmbeddedRedis, client: RedisClient) -> None:
    async with Pulling(client) as pulling:
        os.kill(own_redis.pid, signal.SIGKILL)
        pulling.puller.note(pulling.peer, 1)
        await asyncio.sleep(0.1)
        await asyncio.get_running_loop().run_in_executor(None, own_redis.restart)
        await pulling.wait_for("a")
        pulling.puller.note(pulling.peer, 1)
        await becomes(lambda: pulling.has_pulled("a"), BACK_WITHIN_S)


async def test_a_forgotten_gateway_wakes_nobody(client: RedisClient) -> None:
    async with Pulling(client) as pulling:
        pulling.puller.note(pulling.peer, 1)
        pulling.puller.forget(pulling.peer)
        await asyncio.sleep(0.1)
        assert pulling.num_pops <= 1
