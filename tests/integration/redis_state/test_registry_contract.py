"""Contract of WorkerRegistry, on every implementation."""

import asyncio
from dataclasses import replace

import msgpack
import pytest

from shared.message_parts.step_costs import StepCosts
from shared.protocol import Load
from shared.repeats import Repeats
from shared.state import registry as registry_module
from shared.state.registry import WorkerEntry, encode_entry
from tests.integration.redis_state.backends import Backend, RedisBackend

pytestmark = pytest.mark.anyio

ENTRY = WorkerEntry(
    worker_id="p-0",
    incarnation="p-0.aa",
    role="prefill",
    host="127.0.0.1",
    port=4000,
    pool="m/r/f",
    pid=17,
    version="2026.11.0",
    model="demo",
    max_model_len=2048,
    block_size=16,
)
OTHER = replace(ENTRY, worker_id="d-0", incarnation="d-0.bb", role="decode", port=4001)


async def test_entries_come_back_whole_and_in_order(backend: Backend) -> None:
    registry = backend.registry()
    for entry in (ENTRY, OTHER, ENTRY):
        await registry.register(entry)
    assert await registry.list("m/r/f") == (OTHER, ENTRY)
    assert await registry.pools() == {"m/r/f"}


async def test_pools_do_not_see_each_other(backend: Backend) -> None:
    registry = backend.registry()
    await registry.register(ENTRY)
    await registry.register(replace(OTHER, pool="m/r2/f"))
    assert await registry.list("m/r/f") == (ENTRY,)
    assert await registry.list("absent") == ()
    assert await registry.pools() == {"m/r/f", "m/r2/f"}


async def test_a_new_incarnation_stands_beside_the_old_until_that_is_removed(
    backend: Backend,
) -> None:
    registry = backend.registry()
    reborn = replace(ENTRY, incarnation="p-0.cc", port=4002)
    await registry.register(ENTRY)
    await registry.register(reborn)
    assert await registry.list("m/r/f") == (ENTRY, reborn)
    for _ in range(2):
        await registry.remove("m/r/f", ENTRY.incarnation)
    assert await registry.list("m/r/f") == (reborn,)


async def test_the_last_worker_takes_the_pool_along(backend: Backend) -> None:
    registry = backend.registry()
    await registry.register(ENTRY)
    await registry.remove("m/r/f", ENTRY.incarnation)
    assert await registry.list("m/r/f") == ()
    assert await registry.pools() == frozenset()


async def test_an_entry_lives_as_long_as_it_is_refreshed(backend: Backend) -> None:
    registry, short = backend.registry(), backend.registry(ttl_s=0.05)
    if not isinstance(backend, RedisBackend):
        registry = short
    await short.register(ENTRY)
    async with asyncio.timeout(5):
        while ENTRY in await registry.list("m/r/f"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await short.register(ENTRY)
    assert await registry.list("m/r/f") == (ENTRY,)


async def test_what_others_wrote_there_is_left_out(redis_backend: RedisBackend) -> None:
    registry = redis_backend.registry()
    await registry.register(ENTRY)
    entries, _ = redis_backend.keys.workers("m/r/f")
    await redis_backend.client.command("HSET", entries, "x", b"\xc1", "y", b"\x91\x01")
    assert await registry.list("m/r/f") == (ENTRY,)


async def test_entries_of_other_releases_are_read(
    redis_backend: RedisBackend,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A newer one says more at the end; what cannot be read is said once, not at every poll."""
    monkeypatch.setattr(registry_module, "_ignored", Repeats())
    registry = redis_backend.registry()
    entries, _ = redis_backend.keys.workers("m/r/f")
    newer = [*msgpack.unpackb(encode_entry(ENTRY)), "zone-b", {"gpus": 2}]
    await redis_backend.client.command("HSET", entries, ENTRY.incarnation, msgpack.packb(newer))
    assert await registry.list("m/r/f") == (ENTRY,)
    await redis_backend.client.command("HSET", entries, "x", msgpack.packb(newer[:10]))
    for _ in range(3):
        assert await registry.list("m/r/f") == (ENTRY,)
    assert len([line for line in caplog.messages if "registry entry ignored" in line]) == 2


async def test_a_worker_hears_that_it_is_asked_to_drain_until_that_is_taken_back(
    backend: Backend,
) -> None:
    registry = backend.registry()
    assert not await registry.register(ENTRY)
    await registry.drain(ENTRY.pool, ENTRY.incarnation, 30)
    assert await registry.register(ENTRY)
    assert not await registry.register(OTHER)
    for _ in range(2):
        await registry.drain(ENTRY.pool, ENTRY.incarnation, 0)
        assert not await registry.register(ENTRY)


async def test_a_drain_that_nobody_renews_ends_by_itself(backend: Backend) -> None:
    registry = backend.registry()
    await registry.drain(ENTRY.pool, ENTRY.incarnation, 0.05)
    async with asyncio.timeout(5):
        while await registry.register(ENTRY):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_an_entry_tells_the_load_of_its_worker(backend: Backend) -> None:
    registry = backend.registry()
    load = Load(5, 15, 3, 2, 8, 1, 2, 5, step_costs=StepCosts(1.0, 2.0, 3.0, 4.0, 5.0))
    entry = replace(ENTRY, load=load, num_attempts=4, step_tokens=512)
    await registry.register(entry)
    (listed,) = await registry.list(ENTRY.pool)
    assert (listed.load, listed.num_attempts, listed.step_tokens) == (load, 4, 512)


def test_what_a_worker_does_makes_it_no_other_worker() -> None:
    """A gateway remembers by entries which of them cannot be dialled."""
    load = Load(5, 15, 3, 2, 8, 1, 2, 5, unreserved_tokens={"p": 1})
    busy = replace(ENTRY, load=load, num_attempts=4)
    assert busy == ENTRY and len({busy, ENTRY}) == 1
    assert replace(ENTRY, port=4002) != ENTRY
