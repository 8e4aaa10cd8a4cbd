"""Block bookkeeping: counts, sharing, leaf-first eviction, and a detector for each invariant."""

from array import array
from collections.abc import Callable, MutableSequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.engine.scheduling import block_pool
from shared.engine.scheduling.block_pool import NO_PARENT, BlockPool
from shared.errors import OutOfBlocksError
from shared.kv.block_hash import chain_hashes
from tests.support.oracles.engine_integrity import IntegrityError, check_pool

ROOT = bytes(32)


def make_pool(num_blocks: int = 8, told_every: int = 1) -> BlockPool:
    return BlockPool(num_blocks, 4, array("Q", [0] * num_blocks), told_every=told_every)


def chain(
    pool: BlockPool, num_blocks: int, salt: int = 0, *, bulk: bool = False
) -> tuple[list[int], list[bytes]]:
    """A held chain of registered blocks and its hashes."""
    hashes = chain_hashes(ROOT, [salt + i // 4 for i in range(4 * num_blocks)], 4)
    blocks = pool.allocate(num_blocks)
    parent = NO_PARENT
    for index, block_hash in enumerate(hashes):
        blocks[index] = parent = pool.register(blocks[index], block_hash, parent, bulk=bulk)
    return blocks, hashes


def counts(pool: BlockPool) -> tuple[int, int, int]:
    return pool.num_free, pool.num_cached, pool.num_held


def test_blocks_are_free_then_held_then_cached_then_free() -> None:
    pool = make_pool()
    blocks, hashes = chain(pool, 3)
    plain = pool.allocate(1)
    assert counts(pool) == (4, 0, 4)
    pool.free(blocks)
    pool.free(plain)
    assert counts(pool) == (5, 3, 0)
    assert pool.match(hashes) == blocks
    pool.acquire(blocks[:2])
    assert counts(pool) == (5, 1, 2)
    check_pool(pool, [blocks[:2]])
    pool.free(blocks[:2])
    pool.allocate(8)
    assert counts(pool) == (0, 0, 8)
    assert pool.match(hashes) == []


def test_every_allocation_bumps_the_generation_first() -> None:
    seen: list[int] = []

    class Watched(list[int]):
        def __setitem__(self, index: object, value: object) -> None:
            seen.append(int(str(value)))
            super().__setitem__(index, value)  # type: ignore[call-overload]

    generations: MutableSequence[int] = Watched([5, 5])
    pool = BlockPool(2, 4, generations)
    pool.free(pool.allocate(2))
    pool.allocate(2)
    assert list(generations) == [7, 7]
    assert seen == [6, 6, 7, 7]


def test_too_many_blocks_change_nothing() -> None:
    pool = make_pool(4)
    blocks = pool.allocate(3)
    with pytest.raises(OutOfBlocksError):
        pool.allocate(2)
    assert counts(pool) == (1, 0, 3)
    check_pool(pool, [blocks])


def test_eviction_takes_the_oldest_leaf_and_never_a_parent_first() -> None:
    pool = make_pool(6)
    old, old_hashes = chain(pool, 3, salt=0)
    new, new_hashes = chain(pool, 3, salt=100)
    pool.free(old)
    pool.free(new)
    pool.drain_events()
    pool.allocate(2)
    assert pool.drain_events()[1] == [old_hashes[2], old_hashes[1]]
    assert pool.match(old_hashes) == old[:1]
    assert pool.match(new_hashes) == new


def test_a_hit_makes_a_chain_young_again() -> None:
    pool = make_pool(4)
    first, first_hashes = chain(pool, 2, salt=0)
    second, second_hashes = chain(pool, 2, salt=100)
    pool.free(first)
    pool.free(second)
    pool.acquire(first)
    pool.free(first)
    pool.allocate(2)
    assert pool.match(first_hashes) == first
    assert pool.match(second_hashes) == []


def test_a_branch_keeps_its_trunk() -> None:
    pool = make_pool(4)
    trunk, hashes = chain(pool, 2)
    branch = pool.allocate(1)
    pool.register(branch[0], b"b" * 32, trunk[-1])
    pool.acquire(trunk)
    pool.free(trunk)
    pool.free([*trunk, *branch])
    pool.allocate(2)
    assert pool.match(hashes) == trunk
    assert pool.match([b"b" * 32]) == []


def test_a_twin_moves_to_the_known_block() -> None:
    pool = make_pool()
    blocks, hashes = chain(pool, 1)
    twin = pool.allocate(1)
    assert pool.register(twin[0], hashes[0], NO_PARENT) == blocks[0]
    assert counts(pool) == (7, 0, 1)
    check_pool(pool, [blocks, blocks])


def test_events_are_the_net_change() -> None:
    pool = make_pool(2)
    blocks, hashes = chain(pool, 2)
    assert pool.drain_events() == ([(hashes[0], 1), (hashes[1], 2)], [])
    pool.free(blocks)
    taken = pool.allocate(2)
    pool.free(taken)
    again, _ = chain(pool, 2)
    assert pool.drain_events() == ([], [])
    pool.free(again)
    pool.free(pool.allocate(1))
    assert pool.drain_events() == ([], [hashes[1]])


def test_what_was_stored_is_told_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_pool, "MAX_STORED", 3)
    pool = make_pool(6)
    blocks, hashes = chain(pool, 5)
    assert pool.drain_events() == ([(hashes[depth - 1], depth) for depth in (1, 2, 3)], [])
    assert pool.has_events
    pool.free(blocks)
    pool.free(pool.allocate(3))  # one was free; the last two of the chain, untold yet, are lost
    assert not pool.has_events
    pool.free(pool.allocate(4))
    assert pool.drain_events() == ([], [hashes[2]])


def test_only_every_so_many_blocks_of_a_prefix_are_told() -> None:
    pool = make_pool(told_every=3)
    blocks, hashes = chain(pool, 7)
    assert pool.drain_events() == ([(hashes[2], 3), (hashes[5], 6)], [])
    assert sorted(pool.cached_prefixes()) == sorted([(hashes[2], 3), (hashes[5], 6)])
    pool.free(blocks)
    pool.allocate(3)
    assert pool.drain_events() == ([], [hashes[5]]), "the last two are gone"
    assert not pool.has_events


def test_bulk_work_pushes_nothing_out_beyond_its_share() -> None:
    """The oldest of all is what others have used: it stays, and so does the youngest of bulk."""
    pool = make_pool(16)
    old, old_hashes = chain(pool, 8)
    pool.free(old)
    for salt in range(100, 1000, 100):
        blocks, hashes = chain(pool, 4, salt, bulk=True)
        pool.free(blocks)
        check_pool(pool, [])
    assert pool.match(old_hashes) == old
    assert pool.match(hashes) == blocks
    assert pool.num_cached_bulk == 8


def test_within_its_share_the_latest_use_decides() -> None:
    pool = make_pool(16)
    old, old_hashes = chain(pool, 12)
    bulk, hashes = chain(pool, 4, salt=100, bulk=True)
    pool.free(old)
    pool.free(bulk)
    pool.free(pool.allocate(4))
    assert pool.match(hashes) == bulk
    assert pool.match(old_hashes) == old[:8]


def test_what_others_use_once_is_bulk_no_longer() -> None:
    pool = make_pool(8)
    bulk, hashes = chain(pool, 4, bulk=True)
    pool.free(bulk)
    pool.acquire(bulk[:2])
    pool.free(bulk[:2])
    pool.acquire(bulk[:3], bulk=True)
    pool.free(bulk[:3])
    assert pool.num_cached_bulk == 2
    twin, _ = chain(pool, 3)
    assert twin == bulk[:3] and pool.num_cached_bulk == 1
    pool.free(twin)
    check_pool(pool, [])
    assert pool.num_cached_bulk == 1
    pool.free(pool.allocate(8))
    assert (pool.num_cached_bulk, pool.match(hashes)) == (0, [])


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 6), st.booleans()), max_size=40))
def test_whatever_comes_the_pool_is_sound_and_bulk_is_what_others_left(
    uses: list[tuple[int, int, bool]],
) -> None:
    """Chains that share their beginnings, of both kinds, one after the other."""
    pool = make_pool(16)
    for salt, length, bulk in uses:
        blocks, _ = chain(pool, length, salt=salt % 3 * 10, bulk=bulk)
        check_pool(pool, [blocks])
        assert bulk or not any(pool.is_bulk[block] for block in blocks)
        pool.free(blocks)
        check_pool(pool, [])


def test_the_eviction_order_stays_small() -> None:
    pool = make_pool(4)
    blocks, _ = chain(pool, 3)
    pool.free(blocks)
    for _ in range(1000):
        pool.acquire(blocks)
        pool.free(blocks)
    assert pool.evictable.num_entries <= 2 * pool.num_blocks + 16
    check_pool(pool, [])


def _held(pool: BlockPool) -> int:
    return pool.ref_counts.index(1)


def _leaf(pool: BlockPool) -> int:
    return next(b for b in range(pool.num_blocks) if b in pool.evictable)


def _trunk(pool: BlockPool) -> int:
    return pool.num_children.index(1)


def _mutant_reference(pool: BlockPool) -> None:
    pool.ref_counts[_held(pool)] += 1


def _mutant_leak(pool: BlockPool) -> None:
    pool.free_ids.pop()


def _mutant_double_free(pool: BlockPool) -> None:
    pool.free_ids.append(pool.free_ids[0])


def _mutant_free_held(pool: BlockPool) -> None:
    pool.free_ids.append(_held(pool))


def _mutant_free_cached(pool: BlockPool) -> None:
    pool.free_ids.append(_leaf(pool))


def _mutant_count(pool: BlockPool) -> None:
    pool.num_cached += 1
    pool.num_held -= 1


def _mutant_bulk_count(pool: BlockPool) -> None:
    pool.num_cached_bulk += 1


def _mutant_bulk_trunk(pool: BlockPool) -> None:
    pool.is_bulk[_trunk(pool)] = 1
    pool.num_cached_bulk += 1


def _mutant_index(pool: BlockPool) -> None:
    one, two = list(pool.by_hash)[:2]
    pool.by_hash[one] = pool.by_hash[two]


def _mutant_unindexed(pool: BlockPool) -> None:
    block_hash = pool.hashes[_leaf(pool)]
    assert block_hash is not None
    del pool.by_hash[block_hash]


def _mutant_parent_evicted(pool: BlockPool) -> None:
    trunk = _trunk(pool)
    block_hash = pool.hashes[trunk]
    assert block_hash is not None
    del pool.by_hash[block_hash]
    pool.hashes[trunk] = None
    pool.num_cached -= 1
    pool.free_ids.append(trunk)


def _mutant_children(pool: BlockPool) -> None:
    pool.num_children[_trunk(pool)] = 0


def _mutant_depth(pool: BlockPool) -> None:
    pool.depths[_leaf(pool)] += 1


def _mutant_stuck_leaf(pool: BlockPool) -> None:
    pool.evictable.discard(_leaf(pool))


def _mutant_evictable_trunk(pool: BlockPool) -> None:
    pool.evictable.add(_trunk(pool))


def _mutant_lost_entry(pool: BlockPool) -> None:
    pool.evictable.touch(_leaf(pool))


def _mutant_no_bump(pool: BlockPool) -> None:
    pool.generations[_held(pool)] -= 1


@pytest.mark.parametrize(
    ("mutant", "message"),
    [
        (_mutant_reference, "references"),
        (_mutant_leak, "neither free nor cached nor held"),
        (_mutant_double_free, "free list names a block twice"),
        (_mutant_free_held, "held blocks are in the free list"),
        (_mutant_free_cached, "blocks with a content are in the free list"),
        (_mutant_count, "counted"),
        (_mutant_bulk_count, "of bulk work"),
        (_mutant_bulk_trunk, "only bulk work's"),
        (_mutant_index, "another hash"),
        (_mutant_unindexed, "not in the index"),
        (_mutant_parent_evicted, "parent was evicted"),
        (_mutant_children, "children"),
        (_mutant_depth, "depth"),
        (_mutant_stuck_leaf, "never be evicted"),
        (_mutant_evictable_trunk, "must stay"),
        (_mutant_lost_entry, "no place in the eviction order"),
        (_mutant_no_bump, "generation"),
    ],
)
def test_each_broken_invariant_is_found_and_named(
    mutant: Callable[[BlockPool], None], message: str
) -> None:
    pool = make_pool()
    cached, _ = chain(pool, 2)
    pool.free(cached)
    held = pool.allocate(2)
    check_pool(pool, [held])
    mutant(pool)
    with pytest.raises(IntegrityError, match=message):
        check_pool(pool, [held])


def test_shared_tables_are_checked_against_the_references() -> None:
    pool = make_pool()
    trunk, _ = chain(pool, 2)
    with pytest.raises(IntegrityError, match="twice"):
        check_pool(pool, [[trunk[0], trunk[0]]])
    private = pool.allocate(1)
    pool.ref_counts[private[0]] = 2
    with pytest.raises(IntegrityError, match="without a hash is shared"):
        check_pool(pool, [trunk, private, private])
    pool.ref_counts[private[0]] = 1
    pool.free(trunk[:1])
    with pytest.raises(IntegrityError, match="its parent is not"):
        check_pool(pool, [trunk[1:], private])


def test_the_version_goes_up_with_each_change_and_no_look() -> None:
    pool = BlockPool(4, 4, [0] * 4)
    versions = [pool.version]
    [block] = pool.allocate(1)
    versions.append(pool.version)
    pool.register(block, b"one", NO_PARENT)
    versions.append(pool.version)
    pool.acquire((block,))
    versions.append(pool.version)
    pool.free((block,))
    versions.append(pool.version)
    assert versions == sorted(set(versions))
    assert pool.match((b"one",)) == [block]
    assert pool.version == versions[-1]
