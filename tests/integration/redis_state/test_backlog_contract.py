"""Contract of Backlog, on every implementation."""

import asyncio
import hashlib
from dataclasses import replace

import msgpack
import pytest

from shared.queue.backlog import (
    MAX_PASSES,
    WINDOW,
    Backlog,
    BacklogEntry,
    Placement,
    PutStatus,
    Waiting,
    heads_of,
)
from shared.state.reply import as_bytes
from tests.integration.redis_state.backends import Backend, RedisBackend

pytestmark = pytest.mark.anyio


def entry(
    rid: str, tenant: str = "a", tokens: int = 10, priority: int = 3, heads: tuple[bytes, ...] = ()
) -> BacklogEntry:
    return BacklogEntry(rid, "g.1", tenant, tokens, priority, heads)


async def popped(backlog: Backlog) -> list[str]:
    rids = []
    while (item := await backlog.pop()) is not None:
        rids.append(item.rid)
    return rids


def head(n: int) -> bytes:
    return hashlib.sha256(str(n).encode()).digest()


async def test_an_entry_comes_back_whole_and_once(backend: Backend) -> None:
    backlog = backend.backlog(256)
    item = BacklogEntry("r:1", "g.1", "tenant:x", 512, 3, (head(1), head(2)))
    assert await backlog.put(item) == Placement(PutStatus.QUEUED, 0, 0)
    assert await backlog.length() == 1
    assert await backlog.pop() == item
    assert await backlog.pop() is None
    assert await backlog.length() == 0


async def test_entries_of_a_newer_release_are_read(redis_backend: RedisBackend) -> None:
    """It says more at the end; each script meets one."""
    backlog, client = redis_backend.backlog(), redis_backend.client
    entries = redis_backend.keys.backlog("pool")[1]
    items = [entry(f"r{n}") for n in range(3)]
    await redis_backend.liveness.beat(items[0].gateway_incarnation)
    for item in items:
        await backlog.put(item)
        packed = as_bytes(await client.command("HGET", entries, item.rid))
        longer = msgpack.packb(
            [*msgpack.unpackb(packed, raw=True), b"adapter", 7], use_bin_type=False
        )
        await client.command("HSET", entries, item.rid, longer)
    assert (await backlog.put(items[2])).num_ahead == 2
    assert await backlog.cancel("r1")
    assert await backlog.drop_orphans() == 0
    assert [await backlog.pop(), await backlog.pop(), await backlog.pop()] == [
        items[0],
        items[2],
        None,
    ]


async def test_one_tenant_is_served_in_order(backend: Backend) -> None:
    backlog = backend.backlog(256)
    for n in range(12):
        await backlog.put(entry(f"r{n}"))
    assert await popped(backlog) == [f"r{n}" for n in range(12)]


async def test_a_flood_does_not_delay_another_tenant(backend: Backend) -> None:
    backlog = backend.backlog(256)
    for n in range(10):
        await backlog.put(entry(f"flood{n}", "a"))
    placed = await backlog.put(entry("quiet", "b"))
    assert placed == Placement(PutStatus.QUEUED, 1, 10)
    assert (await popped(backlog)).index("quiet") == 1


async def test_tokens_not_requests_are_shared_fairly(backend: Backend) -> None:
    backlog = backend.backlog(256)
    for n in range(4):
        await backlog.put(entry(f"long{n}", "a", tokens=40))
    for n in range(8):
        await backlog.put(entry(f"short{n}", "b", tokens=10))
    first = (await popped(backlog))[:7]
    assert first == ["long0", "short0", "short1", "short2", "short3", "long1", "short4"]


async def test_a_newcomer_gets_no_credit_for_the_past(backend: Backend) -> None:
    backlog = backend.backlog(256)
    for n in range(6):
        await backlog.put(entry(f"a{n}", "a"))
    for _ in range(4):
        await backlog.pop()
    for n in range(3):
        await backlog.put(entry(f"b{n}", "b"))
    assert await popped(backlog) == ["b0", "a4", "b1", "a5", "b2"]


async def test_classes_go_strictly_first(backend: Backend) -> None:
    backlog = backend.backlog(256)
    await backlog.put(entry("bulk", priority=7))
    await backlog.put(entry("normal", priority=1))
    await backlog.put(entry("urgent", priority=0, tokens=10_000_000))
    await backlog.put(entry("second", priority=0))
    assert await popped(backlog) == ["urgent", "second", "normal", "bulk"]


async def test_a_tenant_of_twice_the_weight_is_served_twice_as_much(backend: Backend) -> None:
    backlog = backend.backlog(256)
    for n in range(12):
        await backlog.put(replace(entry(f"a{n}", "a"), weight=2))
        await backlog.put(entry(f"b{n}", "b"))
    first = (await popped(backlog))[:12]
    assert sum(rid.startswith("a") for rid in first) == 8


async def test_a_flood_of_a_later_class_fills_nobody_elses_backlog(backend: Backend) -> None:
    await backend.liveness.beat("g.1")
    backlog = backend.backlog(max_length=2)
    for n in range(2):
        await backlog.put(entry(f"bulk{n}", priority=6))
    assert (await backlog.put(entry("bulk2", priority=6))).status is PutStatus.FULL
    assert (await backlog.put(entry("bulk3", priority=7))).status is PutStatus.FULL
    assert await backlog.put(entry("quick", priority=3)) == Placement(PutStatus.QUEUED, 0, 0)
    assert await popped(backlog) == ["quick", "bulk0", "bulk1"]


async def test_a_full_backlog_refuses_and_says_what_waits(backend: Backend) -> None:
    await backend.liveness.beat("g.1")
    backlog = backend.backlog(max_length=2)
    await backlog.put(entry("r0"))
    await backlog.put(entry("r1"))
    assert await backlog.put(entry("r2")) == Placement(PutStatus.FULL, 2, 20, start=20)
    assert await backlog.put(entry("r1")) == Placement(PutStatus.QUEUED, 1, 10, start=10)
    assert await backlog.length() == 2


async def test_a_full_backlog_drops_what_nobody_owns(backend: Backend) -> None:
    await backend.liveness.beat("g.1")
    backlog = backend.backlog(max_length=3)
    for rid, g_inc in (("r0", "g.dead"), ("r1", "g.1"), ("r2", "g.dead")):
        await backlog.put(BacklogEntry(rid, g_inc, "a", 10))
    assert await backlog.put(entry("r3")) == Placement(PutStatus.QUEUED, 1, 10, start=30)
    assert await popped(backlog) == ["r1", "r3"]


async def test_what_nobody_owns_can_be_dropped_and_nothing_else(backend: Backend) -> None:
    await backend.liveness.beat("g.1")
    backlog = backend.backlog(256)
    for rid, g_inc in (("r0", "g.dead"), ("r1", "g.1"), ("r2", "g.dead"), ("r3", "g.1")):
        await backlog.put(BacklogEntry(rid, g_inc, "a", 10))
    assert await backlog.drop_orphans() == 2
    assert await backlog.drop_orphans() == 0
    assert await backlog.length() == 2
    assert await popped(backlog) == ["r1", "r3"]


async def test_a_deadline_rejects_only_what_cannot_be_met(backend: Backend) -> None:
    backlog = backend.backlog(256)
    for n in range(3):
        await backlog.put(entry(f"r{n}"))
    late = await backlog.put(entry("late"), max_tokens_ahead=29)
    assert late == Placement(PutStatus.TOO_LATE, 3, 30, start=30)
    assert await backlog.length() == 3
    in_time = await backlog.put(entry("in time"), max_tokens_ahead=30)
    assert in_time == Placement(PutStatus.QUEUED, 3, 30, start=30)
    other = await backlog.put(entry("other", "b"), max_tokens_ahead=10)
    assert other == Placement(PutStatus.QUEUED, 1, 10)


async def test_putting_again_keeps_the_place(backend: Backend) -> None:
    backlog = backend.backlog(256)
    for rid in ("r0", "r1", "r0"):
        await backlog.put(entry(rid))
    assert await backlog.length() == 2
    assert await popped(backlog) == ["r0", "r1"]


async def test_what_a_popper_lost_is_not_charged_again(backend: Backend) -> None:
    """Whoever popped it died before it asked for it: its owner puts it again."""
    backlog = backend.backlog(256)
    placed = await backlog.put(entry("a0", "a"))
    for rid, tenant in (("a1", "a"), ("b0", "b"), ("b1", "b"), ("b2", "b")):
        await backlog.put(entry(rid, tenant))
    lost = await backlog.pop()
    assert lost is not None and lost.rid == "a0"
    again = await backlog.put(entry("a0", "a"), start=placed.start)
    assert again.start == placed.start
    await backlog.put(entry("a2", "a"))
    assert await popped(backlog) == ["b0", "a0", "a1", "b1", "b2", "a2"]


async def test_what_was_paid_is_paid_again_where_redis_lost_it(backend: Backend) -> None:
    """All that waits is put again, and a tenant with more of it goes no more often."""
    backlog = backend.backlog(256)
    for n in range(3):
        await backlog.put(entry(f"a{n}", "a"), start=1000 + 10 * n)
    for n in range(3):
        await backlog.put(entry(f"b{n}", "b"))
    assert await popped(backlog) == ["a0", "b0", "a1", "b1", "a2", "b2"]


async def test_a_cancelled_request_is_gone(backend: Backend) -> None:
    backlog = backend.backlog(256)
    await backlog.put(entry("r0"))
    await backlog.put(entry("r1"))
    assert await backlog.cancel("r0")
    assert not await backlog.cancel("r0")
    assert await popped(backlog) == ["r1"]
    assert not await backlog.cancel("r1")


async def test_the_longest_held_prefix_goes_first(backend: Backend) -> None:
    backlog = backend.backlog(256)
    await backlog.put(entry("none", heads=(head(9),)))
    await backlog.put(entry("one", heads=(head(1), head(3))))
    await backlog.put(entry("two", heads=(head(1), head(2))))
    await backlog.put(entry("broken", heads=(head(8), head(1), head(2))))
    held = {head(1), head(2)}
    order = [item.rid for _ in range(4) if (item := await backlog.pop(held)) is not None]
    assert order == ["two", "one", "none", "broken"]


async def pop_rid(backlog: Backlog, *held: bytes) -> str:
    item = await backlog.pop(held)
    assert item is not None
    return item.rid


async def test_only_the_first_of_the_head_s_class_are_looked_at(backend: Backend) -> None:
    backlog = backend.backlog(256)
    for n in range(WINDOW):
        await backlog.put(entry(f"r{n}"))
    await backlog.put(entry("cached", heads=(head(1),)))
    assert await pop_rid(backlog, head(1)) == "r0"
    assert await pop_rid(backlog, head(1)) == "cached"
    await popped(backlog)
    await backlog.put(entry("first"))
    await backlog.put(entry("lower", priority=4, heads=(head(1),)))
    assert await pop_rid(backlog, head(1)) == "first"


async def test_the_head_is_not_passed_over_for_ever(backend: Backend) -> None:
    backlog = backend.backlog(256)
    await backlog.put(entry("head"))
    order = []
    for n in range(MAX_PASSES + 2):
        await backlog.put(entry(f"cached{n}", heads=(head(1),)))
        order.append(await pop_rid(backlog, head(1)))
    assert order.index("head") == MAX_PASSES


async def test_many_poppers_share_without_doubles(backend: Backend) -> None:
    backlog = backend.backlog(256)
    for n in range(40):
        await backlog.put(entry(f"r{n:02}", tenant=f"t{n % 3}"))
    items = await asyncio.gather(*(backlog.pop({head(n % 5)}) for n in range(50)))
    rids = [item.rid for item in items if item is not None]
    assert sorted(rids) == [f"r{n:02}" for n in range(40)]


def test_heads_stand_at_fixed_depths() -> None:
    hashes = [head(n) for n in range(1, 20)]
    assert heads_of(hashes) == (head(1), head(4), head(16))
    assert heads_of([]) == ()


async def test_the_tokens_of_all_that_waits_are_known(backend: Backend) -> None:
    backlog = backend.queue
    assert await backlog.waiting() == Waiting(0, 0)
    for number, rid in enumerate(("a", "b:c", "d"), start=1):
        await backlog.put(BacklogEntry(rid, "g.1", "acme", 10**number))
    assert await backlog.waiting() == Waiting(3, 1110)
    await backlog.cancel("b:c")
    assert await backlog.waiting() == Waiting(2, 1010)
    assert await backlog.length() == 2
