"""Contract of KVEvents, and its two ends, on every implementation."""

import hashlib
from dataclasses import replace

import pytest

from shared.errors import StateUnavailableError
from shared.state.kv_events import MAX_EVENT_HASHES, KVEvent, KVEvents, KVSnapshot
from shared.state.kv_feed import KVPublisher, PrefixFeed
from shared.state.prefix_index import PrefixIndex
from tests.integration.redis_state.backends import Backend, MemoryBackend

pytestmark = pytest.mark.anyio


def name(n: int) -> bytes:
    return hashlib.sha256(str(n).encode()).digest()


A, B, C = name(1), name(2), name(3)


async def test_events_come_back_in_order_with_their_sum(backend: Backend) -> None:
    events = backend.kv_events()
    first = KVEvent("w.1", 1, stored=(A, B))
    second = KVEvent("w.1", 2, stored=(C,), removed=(A,))
    other = KVEvent("w.2", 1, stored=(A,))
    for event in (first, second, other):
        assert await events.publish(event)
    assert sorted(
        await events.read({"w.1": 0, "w.2": 0}), key=lambda e: (e.incarnation, e.seq)
    ) == [
        first,
        second,
        other,
    ]
    assert list(await events.read({"w.1": 1, "w.2": 1, "w.3": 0})) == [second]
    assert list(await events.read({})) == []
    assert await events.snapshot("w.1") == KVSnapshot("w.1", 2, frozenset({B, C}))
    assert await events.snapshot("w.3") == KVSnapshot("w.3", 0, frozenset())


async def test_a_repeated_event_counts_once(backend: Backend) -> None:
    events = backend.kv_events()
    event = KVEvent("w.1", 1, stored=(A,))
    assert await events.publish(event)
    assert await events.publish(event)
    assert list(await events.read({"w.1": 0})) == [event]


async def test_a_number_that_does_not_follow_is_refused(backend: Backend) -> None:
    events = backend.kv_events()
    assert not await events.publish(KVEvent("w.1", 2, stored=(A,)))
    assert await events.publish(KVEvent("w.1", 0))
    assert await events.snapshot("w.1") == KVSnapshot("w.1", 0, frozenset())


async def test_a_reset_replaces_the_sum_and_is_seen_as_one(backend: Backend) -> None:
    events = backend.kv_events()
    await events.publish(KVEvent("w.1", 1, stored=(A, B)))
    snapshot = KVSnapshot("w.1", 7, frozenset({C}))
    for _ in range(2):
        await events.reset(snapshot)
    assert await events.snapshot("w.1") == snapshot
    assert list(await events.read({"w.1": 1})) == [KVEvent("w.1", 7, reset=True)]
    assert await events.publish(KVEvent("w.1", 8, stored=(A,)))


async def test_only_the_newest_events_are_kept(backend: Backend) -> None:
    events = backend.kv_events(kept=3)
    for seq in range(1, 11):
        assert await events.publish(KVEvent("w.1", seq, stored=(name(seq),)))
    assert [event.seq for event in await events.read({"w.1": 0})] == [8, 9, 10]
    assert len((await events.snapshot("w.1")).held) == 10


def fed(backend: Backend) -> tuple[KVEvents, KVPublisher, PrefixFeed, PrefixIndex]:
    events = backend.kv_events(kept=4)
    index = PrefixIndex(stride=2)
    return events, KVPublisher(events, "w.1", stride=2), PrefixFeed(events, index), index


PROMPT = [name(n) for n in range(6)]
CHAIN = [(block_hash, depth) for depth, block_hash in enumerate(PROMPT, 1)]


async def test_a_gateway_learns_what_a_worker_stores_and_removes(backend: Backend) -> None:
    _, publisher, feed, index = fed(backend)
    publisher.note(CHAIN, ())
    await publisher.flush()
    await feed.poll(["w.1"])
    assert index.holders(PROMPT) == {"w.1": 6}
    publisher.note((), PROMPT[4:])
    await publisher.flush()
    await feed.poll(["w.1"])
    assert index.holders(PROMPT) == {"w.1": 4}
    await feed.poll(["w.2"])
    assert index.holders(PROMPT) == {}


async def test_what_comes_and_goes_between_flushes_is_not_told(backend: Backend) -> None:
    events, publisher, _, _ = fed(backend)
    publisher.note(CHAIN, ())
    publisher.note((), PROMPT)
    await publisher.flush()
    assert await events.snapshot("w.1") == KVSnapshot("w.1", 0, frozenset())


async def test_a_reader_that_fell_behind_reads_the_snapshot(backend: Backend) -> None:
    _, publisher, feed, index = fed(backend)
    await feed.poll(["w.1"])
    for depth, block_hash in CHAIN:
        publisher.note([(depth, block_hash)], ())
    for n in range(10):
        publisher.note([(name(100 + n), 2)], ())
        await publisher.flush()
    await feed.poll(["w.1"])
    assert index.holders(PROMPT) == {"w.1": 6}
    assert len(index) == 13


async def test_many_changes_go_in_events_of_bounded_size(backend: Backend) -> None:
    events, publisher, feed, index = fed(backend)
    publisher.note([(name(n), 2) for n in range(2 * MAX_EVENT_HASHES + 1)], ())
    await publisher.flush()
    news = await events.read({"w.1": 0})
    assert [len(event.stored) for event in news] == [MAX_EVENT_HASHES, MAX_EVENT_HASHES, 1]
    await feed.poll(["w.1"])
    assert len(index) == 2 * MAX_EVENT_HASHES + 1


async def forget_all(backend: Backend, events: KVEvents) -> None:
    if isinstance(backend, MemoryBackend):
        vars(events).update(vars(backend.kv_events(kept=4)))
    else:
        await backend.client.command("DEL", *backend.keys.kv("w.1"))


async def test_lost_data_comes_back_with_the_next_flush(backend: Backend) -> None:
    events, publisher, feed, index = fed(backend)
    publisher.note(CHAIN[:4], ())
    await publisher.flush()
    await feed.poll(["w.1"])
    await forget_all(backend, events)
    publisher.note((), PROMPT[2:4])
    await publisher.flush()
    newcomer = PrefixIndex(stride=2)
    for reader in (feed, PrefixFeed(events, newcomer)):
        await reader.poll(["w.1"])
    assert index.holders(PROMPT) == newcomer.holders(PROMPT) == {"w.1": 2}
    await forget_all(backend, events)
    await publisher.flush()
    assert (await events.snapshot("w.1")).held == {PROMPT[1]}


class Flaky:
    """KVEvents whose answers, or calls, are lost now and then."""

    def __init__(self, events: KVEvents) -> None:
        self._events = events
        self.faults: list[str] = []

    def _next(self) -> str:
        return self.faults.pop(0) if self.faults else ""

    async def publish(self, event: KVEvent) -> bool:
        fault = self._next()
        if fault == "call":
            raise StateUnavailableError(fault)
        answer = await self._events.publish(event)
        if fault:
            raise StateUnavailableError(fault)
        return answer

    async def reset(self, snapshot: KVSnapshot) -> None:
        fault = self._next()
        if fault != "call":
            await self._events.reset(snapshot)
        if fault:
            raise StateUnavailableError(fault)


@pytest.mark.parametrize("fault", ["call", "answer"])
@pytest.mark.parametrize("lose_data", [False, True])
async def test_a_publisher_survives_lost_calls(
    backend: Backend, fault: str, lose_data: bool
) -> None:
    events, _, feed, index = fed(backend)
    flaky = Flaky(events)
    publisher = KVPublisher(flaky, "w.1", stride=2)  # type: ignore[arg-type]
    publisher.note(CHAIN[:2], ())
    await publisher.flush()
    await feed.poll(["w.1"])
    if lose_data:
        await forget_all(backend, events)
    publisher.note(CHAIN[2:4], ())
    flaky.faults = ["", fault] if lose_data else [fault]
    with pytest.raises(StateUnavailableError):
        await publisher.flush()
    publisher.note(CHAIN[4:], PROMPT[:2])
    await publisher.flush()
    await feed.poll(["w.1"])
    snapshot = await events.snapshot("w.1")
    assert snapshot.held == {PROMPT[3], PROMPT[5]}
    assert index.position("w.1") == snapshot.seq
    assert len(index) == 2


async def test_an_index_without_the_gap_rule_is_caught(backend: Backend) -> None:
    events, publisher, _, index = fed(backend)
    index.load(await events.snapshot("w.1"))
    publisher.note(CHAIN[:2], ())
    await publisher.flush()
    publisher.note(CHAIN[2:4], ())
    await publisher.flush()
    _, second = await events.read({"w.1": 0})
    assert not index.apply(second)
    assert index.position("w.1") is None
    mutant = PrefixIndex(stride=2)
    mutant.load(KVSnapshot("w.1", 0, frozenset()))
    assert mutant.apply(replace(second, seq=1))
    assert mutant.holders(PROMPT) != {"w.1": 4}
