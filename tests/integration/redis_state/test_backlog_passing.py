"""Contract of Backlog, on every implementation: short requests pass long ones without a place."""

from dataclasses import replace

import msgpack
import pytest

from shared.queue.backlog import MAX_PASSES, MOST_PASSED, WINDOW, Backlog, Placement, PutStatus
from shared.queue.room import LongPlace, Room
from shared.state.reply import as_bytes
from tests.integration.redis_state.backends import Backend, RedisBackend
from tests.integration.redis_state.test_backlog_contract import entry, head, popped

pytestmark = pytest.mark.anyio


def room(place: LongPlace) -> Room:
    """Of a worker to which prompts of more than 50 tokens are long."""
    return Room(100, 100, 100, place)


async def popped_by(backlog: Backlog, place: LongPlace, *held: bytes) -> str:
    item = await backlog.pop(held, room(place))
    return item.rid if item is not None else ""


async def test_short_ones_pass_a_long_one_that_finds_no_place(backend: Backend) -> None:
    backlog = backend.backlog(256)
    for rid, tokens in (("long0", 60), ("long1", 60), ("short0", 50), ("short1", 10)):
        await backlog.put(entry(rid, tokens=tokens))
    assert [await popped_by(backlog, LongPlace.NONE) for _ in range(3)] == ["short0", "short1", ""]
    assert await backlog.length() == 2
    assert [await popped_by(backlog, LongPlace.ANY) for _ in range(3)] == ["long0", "long1", ""]


async def test_long_ones_are_passed_however_many_they_are(backend: Backend) -> None:
    backlog = backend.backlog(256)
    for n in range(3 * WINDOW):
        await backlog.put(entry(f"long{n}", tokens=60))
    await backlog.put(entry("short"))
    assert await popped_by(backlog, LongPlace.NONE) == "short"
    assert await popped_by(backlog, LongPlace.NONE) == ""


async def test_no_more_long_ones_are_passed_than_a_look_has_time_for(backend: Backend) -> None:
    backlog = backend.backlog(1000)
    for n in range(MOST_PASSED):
        await backlog.put(entry(f"long{n}", tokens=60))
    await backlog.put(entry("passes"))
    await backlog.put(entry("longer", tokens=60))
    await backlog.put(entry("beyond"))
    assert await popped_by(backlog, LongPlace.NONE) == "passes"
    assert await popped_by(backlog, LongPlace.NONE) == ""


async def test_without_room_a_long_one_alone_is_taken_at_its_turn(backend: Backend) -> None:
    backlog = backend.backlog(256)
    for rid, tokens in (("long0", 60), ("short", 10), ("long1", 60)):
        await backlog.put(entry(rid, tokens=tokens))
    full = Room(100, 0, 0, LongPlace.ANY)
    taken = await backlog.pop((), full)
    assert taken is not None and taken.rid == "long0"
    assert await backlog.pop((), full) is None, "the short one holds up the other"
    assert await popped_by(backlog, LongPlace.ANY) == "short"


async def test_what_lost_its_entry_is_dropped(redis_backend: RedisBackend) -> None:
    """As a Redis that is short of memory may do to one of the keys."""
    backlog = redis_backend.backlog(256)
    await backlog.put(entry("lost"))
    await redis_backend.client.command("DEL", redis_backend.keys.backlog("pool")[1])
    await backlog.put(entry("short"))
    assert await popped_by(backlog, LongPlace.ANY) == "short"
    assert await backlog.length() == 0


async def test_another_tenant_passes_up_to_the_finish_tag(backend: Backend) -> None:
    """The third of its requests, of 30 tokens each, has the tag 60, as the long one's end."""
    backlog = backend.backlog(256)
    await backlog.put(replace(entry("long", "a", tokens=100), weight=2, num_expected_tokens=20))
    for n in range(5):
        await backlog.put(entry(f"b{n}", "b", tokens=30))
    await backlog.put(entry("own", "a", tokens=30))
    order = [await popped_by(backlog, LongPlace.NONE) for _ in range(5)]
    assert order == ["b0", "b1", "b2", "own", ""]
    assert await popped(backlog) == ["long", "b3", "b4"]


async def test_what_may_not_pass_holds_up_all_behind_it(backend: Backend) -> None:
    backlog = backend.backlog(256)
    for rid, tenant, tokens in (("long", "a", 60), ("b0", "b", 50), ("b1", "b", 50)):
        await backlog.put(entry(rid, tenant, tokens))
    for n in range(4):
        await backlog.put(entry(f"a{n}", "a", tokens=15))
    order = [await popped_by(backlog, LongPlace.NONE) for _ in range(5)]
    assert order == ["b0", "b1", "a0", "a1", "a2"]
    await backlog.put(entry("b2", "b"))
    await backlog.put(entry("a4", "a"))
    assert await popped_by(backlog, LongPlace.NONE) == "", "b2 comes first, and may not pass"


async def test_a_place_for_early_ones_is_none_for_later_ones(backend: Backend) -> None:
    backlog = backend.backlog(256)
    await backlog.put(entry("early", tokens=60))
    await backlog.put(entry("bulk", tokens=60, priority=4))
    await backlog.put(entry("short", tokens=10, priority=4))
    assert await popped_by(backlog, LongPlace.NONE) == "", "a later class passes nobody"
    assert await popped_by(backlog, LongPlace.EARLY) == "early"
    assert await popped_by(backlog, LongPlace.EARLY) == "short"
    assert await popped_by(backlog, LongPlace.EARLY) == ""
    assert await popped_by(backlog, LongPlace.ANY) == "bulk"


async def test_who_comes_later_passes_too(backend: Backend) -> None:
    """Whatever has passed: the tag of the head is the virtual time."""
    backlog = backend.backlog(256)
    await backlog.put(entry("long", "a", tokens=60))
    for n in range(20):
        await backlog.put(entry(f"a{n}", "a"))
    for _ in range(10):
        await popped_by(backlog, LongPlace.NONE)
    assert await backlog.put(entry("new", "b")) == Placement(PutStatus.QUEUED, 1, 60)
    assert await popped_by(backlog, LongPlace.NONE) == "new"


async def test_prefixes_pass_the_first_of_the_short_ones_so_often_and_the_head_as_often(
    backend: Backend,
) -> None:
    """A pop without a place is none of the passes of the head."""
    backlog = backend.backlog(256)
    await backlog.put(entry("long", tokens=60))
    await backlog.put(entry("first"))
    order = []
    for n in range(MAX_PASSES + 2):
        await backlog.put(entry(f"cached{n}", heads=(head(1),)))
        order.append(await popped_by(backlog, LongPlace.NONE, head(1)))
    assert order.index("first") == MAX_PASSES
    order = []
    for n in range(MAX_PASSES + 2):
        await backlog.put(entry(f"more{n}", heads=(head(1),)))
        order.append(await popped_by(backlog, LongPlace.ANY, head(1)))
        await backlog.put(entry(f"short{n}"))
        await popped_by(backlog, LongPlace.NONE)
    assert order.index("long") == MAX_PASSES


async def test_a_long_one_that_an_earlier_release_put_is_passed_too(
    redis_backend: RedisBackend,
) -> None:
    """It did not write what it charged."""
    backlog, client = redis_backend.backlog(), redis_backend.client
    entries = redis_backend.keys.backlog("pool")[1]
    await backlog.put(entry("long", "a", tokens=60))
    packed = as_bytes(await client.command("HGET", entries, "long"))
    shorter = msgpack.packb(msgpack.unpackb(packed, raw=True)[:6], use_bin_type=False)
    await client.command("HSET", entries, "long", shorter)
    for n in range(3):
        await backlog.put(entry(f"b{n}", "b", tokens=40))
    order = [await popped_by(backlog, LongPlace.NONE) for _ in range(3)]
    assert order == ["b0", "b1", ""]
