"""The movers of several ranks as one: blocks are whole in the arena, whatever the ranks hold."""

import asyncio
import itertools
import os
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from shared.errors import CorruptPieceError, PeerLostError
from shared.kv.columns import Words
from shared.kv.digest import BlockDigests, digest_of
from shared.kv.layer_groups import GroupRange
from shared.kv.layout import KVLayout
from shared.kv.memory import KVMemory
from shared.kv.share import KVShare
from shared.mover.client import MoverClient, data_socket_pair
from shared.mover.copies import NOT_LINKED, Mark
from shared.mover.host_share_copies import HostShareCopies
from shared.mover.mover import Marks, Mover
from shared.mover.rank_movers import NO_DIGEST, RankMovers
from shared.protocol import Attempt
from tests.support.pairs.transfer_pair import num_pool_descriptors

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]
LAYOUT = KVLayout("m", "float16", 5, 2, 8, 12, 4)
NUM_BLOCKS = 6
ATTEMPT = Attempt("r", 0)
RATIOS = [(heads, size) for heads in (1, 2, 4, 8) for size in (2, 4, 8)]
Bytes = NDArray[np.uint8]


class Model:
    """Ranks with a pool each, and one arena. `whole`: what the pools hold together."""

    def __init__(self, num_heads: int, size: int) -> None:
        layout = replace(LAYOUT, num_kv_heads=num_heads)
        self.shares = [KVShare(layout, rank, size) for rank in range(size)]
        self.groups = self.shares[0].groups
        self.memory = KVMemory.create(layout, NUM_BLOCKS, 4 * layout.block_bytes)
        shape = (NUM_BLOCKS, layout.num_layers, 2, num_heads, self.shares[0].head_bytes)
        self.whole: Bytes = np.random.default_rng(1).integers(0, 256, shape, np.uint8)
        self.pools = [self.part_of(self.whole, share) for share in self.shares]
        self.copies = [self.make(share, HostShareCopies) for share in self.shares]

    def part_of(self, blocks: Bytes, share: KVShare) -> Bytes:
        """[blocks, bytes of the share], a copy."""
        return blocks[:, :, :, share.heads].reshape(len(blocks), -1).copy()

    def make(self, share: KVShare, kind: type[HostShareCopies]) -> HostShareCopies:
        return kind(self.pools[share.rank], self.memory, share)

    def digests(self, blocks: Sequence[int], groups: GroupRange) -> Words:
        """Of whole blocks."""
        whole = KVShare(self.shares[0].whole)
        return BlockDigests(self.whole.reshape(NUM_BLOCKS, -1), whole).of(blocks, groups)


@asynccontextmanager
async def moving(model: Model, marks: Marks | None = None) -> AsyncIterator[RankMovers]:
    """`marks`: of rank 0."""
    async with AsyncExitStack() as stack:
        clients = []
        for rank, copies in enumerate(model.copies):
            ours, theirs = data_socket_pair()
            mover = Mover(theirs, copies, copies, None if rank else marks)
            mover.start()
            clients.append(MoverClient(ours))
            stack.push_async_callback(asyncio.to_thread, mover.join, 5)
        movers = RankMovers(clients, model.shares)
        stack.callback(movers.close)
        yield movers


def span_of(model: Model, groups: GroupRange) -> slice:
    ends = (0, *model.groups.layer_ends)
    return slice(ends[groups.first], ends[groups.end])


@pytest.mark.parametrize(("num_heads", "size"), RATIOS)
async def test_what_is_staged_is_whole(num_heads: int, size: int) -> None:
    model = Model(num_heads, size)
    for groups in (model.groups.all, GroupRange(1, 1)):
        wanted = model.whole[[4, 1], span_of(model, groups)].tobytes()
        async with moving(model) as movers:
            await movers.stage((4, 1), groups, slice(8, 8 + len(wanted)))
        assert bytes(model.memory.arena[8 : 8 + len(wanted)]) == wanted


@pytest.mark.parametrize(("num_heads", "size"), RATIOS)
async def test_every_rank_fills_its_own_heads(num_heads: int, size: int) -> None:
    model = Model(num_heads, size)
    for pool in model.pools:
        pool[:] = 0
    groups = GroupRange(0, len(model.groups) - 1)
    layers = span_of(model, groups)
    arrived = model.whole[[5, 0], layers].tobytes()
    model.memory.arena[16 : 16 + len(arrived)] = arrived
    async with moving(model) as movers:
        found = await movers.fill(ATTEMPT, (3, 2), groups, slice(16, 16 + len(arrived)))
    assert np.array_equal(found, model.digests((5, 0), groups))
    expected = np.zeros_like(model.whole)
    expected[[3, 2], layers] = model.whole[[5, 0], layers]
    for share, pool in zip(model.shares, model.pools, strict=True):
        assert np.array_equal(pool, model.part_of(expected, share))


@pytest.mark.parametrize(("num_heads", "size"), RATIOS)
async def test_digests_are_of_whole_blocks(num_heads: int, size: int) -> None:
    model = Model(num_heads, size)
    async with moving(model) as movers:
        found = await movers.digests((5, 0, 3), model.groups.all, None)
    assert np.array_equal(found, model.digests((5, 0, 3), model.groups.all))


def shown(model: Model) -> list[int]:
    """Descriptors of the pools of its ranks, as their processes would pass them."""
    memories = [KVMemory.create(share.layout, NUM_BLOCKS) for share in model.shares]
    for memory, pool in zip(memories, model.pools, strict=True):
        memory.rows()[:] = pool
        memory.probe[:] = model.memory.probe[: len(memory.probe)]
    return [memory.read_only() for memory in memories]


@pytest.mark.parametrize("num_heads", [1, 2, 8])
@pytest.mark.parametrize(("owning", "taking"), list(itertools.product((1, 2, 4, 8), (2, 4, 8))))
async def test_every_rank_copies_its_own_heads_out_of_mapped_pools(
    num_heads: int, owning: int, taking: int
) -> None:
    source, model = Model(num_heads, owning), Model(num_heads, taking)
    for pool in model.pools:
        pool[:] = 0
    groups = GroupRange(0, len(model.groups) - 1)
    descriptors = shown(source)
    async with moving(model) as movers:
        await movers.map("p.1", NUM_BLOCKS, descriptors)
        probe = np.frombuffer(source.memory.probe, np.uint8)[: source.pools[0].size]
        assert (await movers.probe("p.1")).digest == digest_of(probe)
        found = await movers.fetch(ATTEMPT, "p.1", (5, 0), (3, 2), groups)
        await movers.unmap("p.1")
        with pytest.raises(CorruptPieceError, match="is not mapped"):
            await movers.fetch(ATTEMPT, "p.1", (5, 0), (3, 2), groups)
    for descriptor in descriptors:
        os.close(descriptor)
    assert np.array_equal(found, source.digests((5, 0), groups))
    expected, layers = np.zeros_like(model.whole), span_of(model, groups)
    expected[[3, 2], layers] = source.whole[[5, 0], layers]
    for share, pool in zip(model.shares, model.pools, strict=True):
        assert np.array_equal(pool, model.part_of(expected, share))


async def test_a_pool_of_one_rank_that_reads_otherwise_is_seen() -> None:
    source, model = Model(4, 2), Model(4, 2)
    descriptors = shown(source)
    other = KVMemory.create(source.shares[1].layout, NUM_BLOCKS)
    async with moving(model) as movers:
        await movers.map("p.1", NUM_BLOCKS, [descriptors[0], other.fd])
        probe = np.frombuffer(source.memory.probe, np.uint8)[: source.pools[0].size]
        assert (await movers.probe("p.1")).digest != digest_of(probe)


@pytest.mark.parametrize(("owning", "says"), [(2, "smaller than its owner says"), (3, "of 3")])
async def test_pools_that_cannot_be_mapped_are_let_go(owning: int, says: str) -> None:
    model = Model(4, 2)
    small = KVShare(model.shares[0].whole, 0, 2).layout
    descriptors = [KVMemory.create(small, NUM_BLOCKS).read_only() for _ in range(owning - 1)]
    descriptors.append(KVMemory.create(small, 1).read_only())
    before = num_pool_descriptors()
    async with moving(model) as movers:
        with pytest.raises(PeerLostError, match=says):
            await movers.map("p.1", NUM_BLOCKS, descriptors)
        assert num_pool_descriptors() == before, "the movers live in this process"
    for descriptor in descriptors:
        os.close(descriptor)


async def test_ranks_are_not_linked() -> None:
    async with moving(Model(2, 2)) as movers:
        with pytest.raises(PeerLostError, match=NOT_LINKED):
            await movers.invite("d.1", "127.0.0.1")
        with pytest.raises(PeerLostError, match=NOT_LINKED):
            await movers.accept("p.1", NUM_BLOCKS, b"", "127.0.0.1")


class Wrong(HostShareCopies):
    """Fills what is digested otherwise than elsewhere, in one group."""

    def fill(self, blocks: Sequence[int], groups: GroupRange, offset: int, after: Mark) -> Words:
        found = super().fill(blocks, groups, offset, after)
        found[:, 1] += np.uint64(1)
        return found


async def test_what_copies_of_the_same_heads_do_not_agree_about_has_no_digest() -> None:
    model = Model(2, 4)
    model.copies[3] = model.make(model.shares[3], Wrong)
    room = slice(0, model.shares[0].whole.block_bytes)
    async with moving(model) as movers:
        found = await movers.fill(ATTEMPT, (1,), model.groups.all, room)
    assert found[0, 1] == NO_DIGEST
    assert np.count_nonzero(found) == found.size - 1


class Held(HostShareCopies):
    """Waits before it stages, fills or digests."""

    begun = threading.Event()
    go_on = threading.Event()

    def stage(self, blocks: Sequence[int], groups: GroupRange, offset: int) -> None:
        self._wait()
        super().stage(blocks, groups, offset)

    def fill(self, blocks: Sequence[int], groups: GroupRange, offset: int, after: Mark) -> Words:
        self._wait()
        return super().fill(blocks, groups, offset, after)

    def _wait(self) -> None:
        self.begun.set()
        assert self.go_on.wait(10)


@pytest.fixture
def held() -> type[Held]:
    Held.begun.clear()
    Held.go_on.clear()
    return Held


@pytest.mark.parametrize("ask", ["stage", "fill"])
async def test_a_cancelled_call_ends_once_no_rank_touches_anything(
    ask: str, held: type[Held]
) -> None:
    model = Model(4, 4)
    model.copies[2] = model.make(model.shares[2], held)
    groups, room = model.groups.all, slice(0, model.shares[0].whole.block_bytes)
    async with moving(model) as movers:
        filling = movers.fill(ATTEMPT, (1,), groups, room)
        staging = movers.stage((1,), groups, room)
        chosen, other = (staging, filling) if ask == "stage" else (filling, staging)
        other.close()
        asking: asyncio.Future[object] = asyncio.ensure_future(chosen)
        await asyncio.to_thread(held.begun.wait, 10)
        asking.cancel()
        await asyncio.sleep(0.05)
        assert not asking.done(), "rank 2 still copies"
        held.go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await asking


async def test_a_call_that_fails_at_one_rank_ends_once_no_rank_touches_anything(
    held: type[Held],
) -> None:
    model = Model(4, 4)
    model.copies[1] = model.make(model.shares[1], held)
    beyond = slice(4 * model.shares[0].whole.block_bytes, 5 * model.shares[0].whole.block_bytes)
    async with moving(model) as movers:
        asking = asyncio.ensure_future(movers.stage((1,), model.groups.all, beyond))
        await asyncio.to_thread(held.begun.wait, 10)
        await asyncio.sleep(0.05)
        assert not asking.done(), "rank 1 still copies"
        held.go_on.set()
        with pytest.raises(CorruptPieceError, match="arena is smaller"):
            await asking


async def test_rank_0_fills_first(held: type[Held]) -> None:
    """It alone knows which steps may still write the blocks, on all ranks."""
    model = Model(2, 2)
    model.copies[0] = model.make(model.shares[0], held)
    room = slice(0, model.shares[0].whole.block_bytes)
    before = model.pools[1].copy()
    async with moving(model) as movers:
        filling = asyncio.ensure_future(movers.fill(ATTEMPT, (1,), model.groups.all, room))
        await asyncio.to_thread(held.begun.wait, 10)
        await asyncio.sleep(0.05)
        assert np.array_equal(model.pools[1], before)
        held.go_on.set()
        await filling
        assert not np.array_equal(model.pools[1], before)


class FirstGroup:
    """Marks of a step that has written its first group, and waits for the others."""

    def of_step(self, step: int, group: int) -> Mark:
        return None

    def num_written(self, step: int, groups: GroupRange) -> int:
        return 1 if groups.first == 0 else 0

    def of_attempt(self, attempt: Attempt) -> Mark:
        return None


async def test_all_ranks_digest_what_rank_0_says_is_written() -> None:
    model = Model(4, 2)
    async with moving(model, FirstGroup()) as movers:
        found = await movers.digests((5, 0), model.groups.all, 7)
    assert np.array_equal(found, model.digests((5, 0), GroupRange(0, 1)))


async def test_a_lost_rank_is_a_lost_peer() -> None:
    model = Model(2, 2)
    async with moving(model) as movers:
        movers.close()
        with pytest.raises(PeerLostError):
            await movers.digests((1,), model.groups.all, None)
