"""The mover behind its socket: what it copies, what it refuses, and how it ends."""

import asyncio
import gc
import os
import random
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import CorruptPieceError, PeerLostError
from shared.kv.columns import Words
from shared.kv.digest import BlockDigests
from shared.kv.layer_groups import GroupRange, layer_groups
from shared.kv.layout import KVLayout
from shared.kv.memory import KVMemory
from shared.kv.peer_memory import PeerTable
from shared.mover.client import MoverClient, data_socket_pair
from shared.mover.copies import Mark
from shared.mover.host_copies import HostCopies
from shared.mover.messages import MAX_DIGESTS
from shared.mover.mover import Mover
from shared.mover.runs import joined
from shared.protocol import Attempt

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]
LAYOUT = KVLayout("m", "float32", 3, 2, 1, 8, 4)
GROUPS = layer_groups(LAYOUT)
ALL = GROUPS.all
FIRST, LAST = GroupRange(0, 1), GroupRange(1, 1)
ATTEMPT = Attempt("r", 0)


def pool(num_blocks: int, seed: int | None = None) -> KVMemory:
    memory = KVMemory.create(LAYOUT, num_blocks)
    if seed is not None:
        numbers = random.Random(seed)  # noqa: S311
        for block in range(num_blocks):
            memory.block(block)[:] = numbers.randbytes(LAYOUT.block_bytes)
    return memory


@asynccontextmanager
async def moving(
    memory: KVMemory,
    copies: HostCopies | None = None,
    digests: HostCopies | None = None,
    **options: Any,
) -> AsyncIterator[MoverClient]:
    ours, theirs = data_socket_pair()
    mover = Mover(theirs, copies or HostCopies(memory), digests or HostCopies(memory), **options)
    mover.start()
    client = MoverClient(ours)
    try:
        yield client
    finally:
        client.close()
        await asyncio.to_thread(mover.join, 5)


async def map_pool(client: MoverClient, source: str, memory: KVMemory) -> None:
    fd = memory.read_only()
    await client.map(source, memory.num_blocks, [fd])
    os.close(fd)


def num_mapped() -> int:
    """Of pools in use: those of earlier tests may be garbage."""
    gc.collect()
    return Path("/proc/self/maps").read_text(encoding="ascii").count("baton-kv")


async def test_blocks_arrive_and_are_digested_where_they_lie() -> None:
    source, ours = pool(9, seed=1), pool(7)
    async with moving(ours) as client:
        await map_pool(client, "p.1", source)
        digests = await client.fetch(ATTEMPT, "p.1", (8, 3, 4, 0), (1, 2, 3, 6), ALL)
        for theirs, here in zip((8, 3, 4, 0), (1, 2, 3, 6), strict=True):
            assert ours.block(here) == source.block(theirs)
        assert np.array_equal(digests, BlockDigests.of_pool(source).of((8, 3, 4, 0), ALL))
        assert np.array_equal(await client.digests((6, 1), ALL, None), digests[[3, 0]])
        assert bytes(ours.block(0)) == bytes(LAYOUT.block_bytes)


async def test_a_group_arrives_and_the_rest_of_the_block_stays() -> None:
    source, ours = pool(9, seed=1), pool(7, seed=2)
    before = ours.rows().copy()
    async with moving(ours) as client:
        await map_pool(client, "p.1", source)
        digests = await client.fetch(ATTEMPT, "p.1", (8, 3, 4), (1, 2, 3), LAST)
        assert np.array_equal(digests, BlockDigests.of_pool(source).of((8, 3, 4), LAST))
        assert np.array_equal(await client.digests((2,), LAST, None), digests[1:2])
        before[1:4, GROUPS.span(LAST)] = source.rows()[[8, 3, 4], GROUPS.span(LAST)]
        assert np.array_equal(ours.rows(), before)
        await client.fetch(ATTEMPT, "p.1", (8, 3, 4), (1, 2, 3), FIRST)
        assert np.array_equal(ours.rows()[1:4], source.rows()[[8, 3, 4]])


async def test_more_blocks_than_a_packet_names() -> None:
    number = 2 * MAX_DIGESTS // len(GROUPS) + 3
    source, ours = pool(number, seed=2), pool(number)
    ids = list(range(number))
    random.Random(3).shuffle(ids)  # noqa: S311
    async with moving(ours) as client:
        await map_pool(client, "p.1", source)
        fetched = await client.fetch(ATTEMPT, "p.1", ids, ids, ALL)
        assert np.array_equal(fetched, await client.digests(ids, ALL, None))
    assert ours.blocks == source.blocks


async def test_what_it_refuses_costs_the_question_only(tmp_path: Path) -> None:
    source, ours = pool(4, seed=4), pool(4)
    unsealed = os.open(tmp_path / "pool", os.O_CREAT | os.O_RDWR)
    os.ftruncate(unsealed, 2**20)
    async with moving(ours) as client:
        with pytest.raises(CorruptPieceError, match="not mapped"):
            await client.fetch(ATTEMPT, "p.1", (0,), (0,), ALL)
        with pytest.raises(PeerLostError, match="cannot be mapped"):
            await client.map("p.1", 4, [unsealed])
        fd = source.read_only()
        with pytest.raises(PeerLostError, match="smaller than its owner says"):
            await client.map("p.1", 4096, [fd])
        os.close(fd)
        await map_pool(client, "p.1", source)
        with pytest.raises(CorruptPieceError, match="a block that its pool does not have"):
            await client.fetch(ATTEMPT, "p.1", (4,), (0,), ALL)
        await client.fetch(ATTEMPT, "p.1", (3,), (0,), ALL)
        assert ours.block(0) == source.block(3)
    os.close(unsealed)


async def test_nothing_stays_mapped() -> None:
    """Not after Unmap, not after a second Map, not after the end."""
    source, ours = pool(4, seed=5), pool(4)
    before = num_mapped()
    async with moving(ours) as client:
        for _ in range(3):
            await map_pool(client, "p.1", source)
            await map_pool(client, "p.2", source)
        assert num_mapped() == before + 2
        await client.unmap("p.1")
        await client.unmap("p.1")
        assert num_mapped() == before + 1
    assert num_mapped() == before


async def test_a_cancelled_fetch_returns_once_nothing_is_copied_any_more() -> None:
    began, go_on = threading.Event(), threading.Event()

    class Slow(HostCopies):
        def fetch(self, *arguments: Any) -> Words:
            began.set()
            assert go_on.wait(10)
            return super().fetch(*arguments)

    source, ours = pool(4, seed=6), pool(4)
    async with moving(ours, Slow(ours)) as client:
        await map_pool(client, "p.1", source)
        fetching = asyncio.create_task(client.fetch(ATTEMPT, "p.1", (1,), (1,), ALL))
        await asyncio.to_thread(began.wait, 10)
        fetching.cancel()
        done, _ = await asyncio.wait({fetching}, timeout=0.05)
        assert not done
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await fetching
        assert ours.block(1) == source.block(1)


class StepMarks:
    """A mark that says what it is of. A step's waits until the step has begun."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.begun = threading.Event()
        self.num_groups_written = 0

    def of_step(self, step: int, group: int) -> Mark:
        self.asked.set()
        assert self.begun.wait(10)
        return step, group

    def num_written(self, step: int, groups: GroupRange) -> int:
        return max(0, min(groups.end, self.num_groups_written) - groups.first)

    def of_attempt(self, attempt: Attempt) -> Mark:
        return attempt


class Noting(HostCopies):
    """Keeps the marks that its work comes behind."""

    def __init__(self, memory: KVMemory) -> None:
        super().__init__(memory)
        self.marks: list[Mark] = []

    def fetch(
        self,
        source: str,
        source_blocks: Sequence[int],
        blocks: Sequence[int],
        groups: GroupRange,
        after: Mark,
    ) -> Words:
        self.marks.append(after)
        return super().fetch(source, source_blocks, blocks, groups, after)

    def digests(self, blocks: Sequence[int], groups: GroupRange, after: Mark) -> Words:
        self.marks.append(after)
        return super().digests(blocks, groups, after)


async def test_a_copy_comes_behind_the_steps_of_its_attempt() -> None:
    source, ours = pool(4, seed=7), pool(4)
    copies = Noting(ours)
    async with moving(ours, copies, marks=StepMarks()) as client:
        await map_pool(client, "p.1", source)
        await client.fetch(ATTEMPT, "p.1", (0,), (0,), ALL)
    assert copies.marks == [ATTEMPT]


async def test_a_digest_of_a_step_waits_for_its_first_group() -> None:
    ours = pool(4, seed=8)
    digests, marks = Noting(ours), StepMarks()
    async with moving(ours, digests=digests, marks=marks) as client:
        asking = asyncio.create_task(client.digests((1, 3), ALL, 7))
        await asyncio.to_thread(marks.asked.wait, 10)
        assert digests.marks == []
        ours.block(3)[:] = b"x" * LAYOUT.block_bytes
        marks.begun.set()
        assert np.array_equal(await asking, BlockDigests.of_pool(ours).of((1, 3), FIRST))
        second = GroupRange(1, 1)
        assert np.array_equal(
            await client.digests((1,), second, 8), BlockDigests.of_pool(ours).of((1,), second)
        )
        await client.digests((1,), ALL, None)
    assert digests.marks == [(7, 0), (8, 1), None]


async def test_all_that_a_step_has_written_is_digested_at_once() -> None:
    ours = pool(4, seed=8)
    digests, marks = Noting(ours), StepMarks()
    async with moving(ours, digests=digests, marks=marks) as client:
        for number in range(1, ALL.num + 1):
            marks.num_groups_written = number
            found = await client.digests((1, 3), ALL, 7)
            assert np.array_equal(
                found, BlockDigests.of_pool(ours).of((1, 3), GroupRange(0, number))
            )
    assert digests.marks == [None] * ALL.num, "nothing is left to wait for"


async def test_blocks_of_several_messages_have_the_groups_of_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """More groups are written between two messages."""
    monkeypatch.setattr("shared.mover.client.MAX_DIGESTS", 2 * ALL.num)
    ours = pool(4, seed=8)
    marks = StepMarks()
    marks.num_groups_written = 1

    class Later(HostCopies):
        def digests(self, *question: Any) -> Words:
            marks.num_groups_written = ALL.num
            return super().digests(*question)

    async with moving(ours, digests=Later(ours), marks=marks) as client:
        found = await client.digests((0, 1, 2), ALL, 7)
        assert np.array_equal(found, BlockDigests.of_pool(ours).of((0, 1, 2), FIRST))


async def test_copies_do_not_wait_for_the_step_of_a_digest() -> None:
    source, ours = pool(4, seed=9), pool(4)
    marks = StepMarks()
    async with moving(ours, marks=marks) as client:
        await map_pool(client, "p.1", source)
        asking = asyncio.create_task(client.digests((1,), ALL, 7))
        await asyncio.to_thread(marks.asked.wait, 10)
        async with asyncio.timeout(5):
            await client.fetch(ATTEMPT, "p.1", (0,), (0,), ALL)
        assert not asking.done()
        marks.begun.set()
        await asking


async def test_whoever_asks_a_mover_that_is_gone_is_told() -> None:
    memory = pool(2)
    ours, theirs = data_socket_pair()
    client = MoverClient(ours)
    asking = asyncio.create_task(client.digests((0,), ALL, None))
    await asyncio.sleep(0.01)
    theirs.close()
    with pytest.raises(PeerLostError):
        await asking
    with pytest.raises(PeerLostError):
        await client.fetch(ATTEMPT, "p.1", (0,), (0,), ALL)
    client.close()
    del memory


async def test_what_no_question_explains_ends_the_process() -> None:
    failed = threading.Event()

    class Broken(HostCopies):
        def digests(self, *question: object) -> Words:
            raise RuntimeError("an illegal address")

    memory = pool(2)
    async with moving(memory, digests=Broken(memory), on_failure=failed.set) as client:
        with pytest.raises(PeerLostError):
            await client.digests((0,), ALL, None)
    assert failed.is_set()


def test_a_table_shows_what_its_owner_writes_and_takes_no_writes() -> None:
    memory = pool(3)
    table = PeerTable(3, memory.read_only())
    memory.generations[2] += 5
    assert list(table.generations) == [0, 0, 5]
    with pytest.raises(ValueError, match="read-only"):
        table.generations[0] = 1
    table.close()


def test_runs_join_as_many_blocks_as_they_copy() -> None:
    with pytest.raises(ValueError, match="2 source blocks for 1"):
        joined([5, 6], [1])


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=12))
def test_joined_runs_copy_each_pair_once_in_order(pairs: list[tuple[int, int]]) -> None:
    runs = list(joined([source for source, _ in pairs], [block for _, block in pairs]).each())
    assert [
        (run.source_block + offset, run.block + offset)
        for run in runs
        for offset in range(run.num_blocks)
    ] == pairs
    for left, right in pairwise(runs):
        assert (
            left.source_block + left.num_blocks != right.source_block
            or left.block + left.num_blocks != right.block
        )
