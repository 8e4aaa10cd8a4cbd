"""The block digest: equal to its formula, and changed by every kind of damage it guards against."""

import asyncio
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.kv.digest import BlockDigests
from shared.kv.layer_groups import GroupRange, layer_groups
from shared.kv.layout import KVLayout
from shared.kv.memory import KVMemory
from shared.transfer.digest_threads import DigestThreads

MASK = 2**64 - 1
WHOLE = GroupRange(0, 1)
"""of a pool of one layer"""


def pool(block_bytes: int, num_blocks: int, seed: int = 0) -> KVMemory:
    layout = KVLayout("m", "float16", 1, 1, 1, block_bytes // 2, 1)
    assert layout.block_bytes == block_bytes
    memory = KVMemory.create(layout, num_blocks)
    for block_id in range(num_blocks):
        memory.block(block_id)[:] = random.Random(seed + block_id).randbytes(block_bytes)  # noqa: S311
    return memory


def scalar_mix(x: int) -> int:
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def scalar_digest(content: bytes) -> int:
    content += bytes(-len(content) % 8)
    total = 0
    for index in range(len(content) // 8):
        word = int.from_bytes(content[8 * index : 8 * index + 8], "little")
        total += scalar_mix(word ^ scalar_mix((index + 1) * 0x9E3779B97F4A7C15 & MASK))
    return total & MASK


@pytest.mark.parametrize("block_bytes", [2, 6, 8, 10, 64, 1000, 4096, 270_000, 600_002])
def test_equals_its_formula_in_any_order_of_blocks(block_bytes: int) -> None:
    memory = pool(block_bytes, 5)
    digests = BlockDigests.of_pool(memory)
    expected = [scalar_digest(bytes(memory.block(block_id))) for block_id in range(5)]
    for block_ids in ([0, 1, 2, 3, 4], [3, 0, 4, 4, 1], [2], []):
        found = digests.of(block_ids, WHOLE)
        assert found.shape == (len(block_ids), 1)
        assert found[:, 0].tolist() == [expected[block_id] for block_id in block_ids]


@pytest.mark.parametrize("layer_bytes", [6, 8, 4096, 270_000])
def test_a_group_is_digested_like_a_block_of_its_bytes(layer_bytes: int) -> None:
    layout = KVLayout("m", "float16", 4, 1, 1, layer_bytes // 2, 1)
    memory = KVMemory.create(layout, 5)
    memory.blocks[: 5 * layout.block_bytes] = random.Random(1).randbytes(5 * layout.block_bytes)  # noqa: S311
    groups, digests = layer_groups(layout), BlockDigests.of_pool(memory)
    assert len(groups) > 1
    for block_ids in ([1, 2, 3], [4, 0, 2]):
        for asked in (groups.all, GroupRange(1, len(groups) - 1), GroupRange(0, 1)):
            spans = [groups.span(GroupRange(asked.first + i, 1)) for i in range(asked.num)]
            assert digests.of(block_ids, asked).tolist() == [
                [scalar_digest(bytes(memory.block(block_id)[span])) for span in spans]
                for block_id in block_ids
            ]


def test_many_small_blocks_take_several_tiles() -> None:
    memory = pool(8, 70_000)
    digests = BlockDigests.of_pool(memory).of(range(70_000), WHOLE)[:, 0]
    for block_id in (0, 1, 32_767, 32_768, 65_536, 69_999):
        assert digests[block_id] == scalar_digest(bytes(memory.block(block_id)))


def test_every_single_bit_flip_of_a_block_changes_it() -> None:
    memory = pool(128, 1)
    digests = BlockDigests.of_pool(memory)
    before = digests.of([0], WHOLE)
    block = memory.block(0)
    for bit in range(128 * 8):
        block[bit // 8] ^= 1 << bit % 8
        assert digests.of([0], WHOLE) != before
        block[bit // 8] ^= 1 << bit % 8
    assert digests.of([0], WHOLE) == before


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.integers(0, 63), st.integers(0, 63), st.integers(0, 63))
def test_swapped_words_and_equal_flips_in_two_words_change_it(
    seed: int, left: int, right: int, bit: int
) -> None:
    memory = pool(512, 1, seed)
    digests = BlockDigests.of_pool(memory)
    before = digests.of([0], WHOLE)
    words = np.frombuffer(memory.block(0), dtype=np.uint64)
    if left != right:
        words[[left, right]] = words[[right, left]]
        assert digests.of([0], WHOLE) != before
        words[[left, right]] = words[[right, left]]
        words[[left, right]] ^= np.uint64(1) << np.uint64(bit)
        assert digests.of([0], WHOLE) != before


def test_a_digest_without_position_keys_would_miss_swapped_words() -> None:
    """The detector's own mutant: the property above can fail."""
    memory = pool(512, 1)
    mutant = BlockDigests.of_pool(memory)
    mutant._keys = np.zeros_like(mutant._keys)
    before = mutant.of([0], WHOLE)
    words = np.frombuffer(memory.block(0), dtype=np.uint64)
    words[[3, 40]] = words[[40, 3]]
    assert mutant.of([0], WHOLE) == before
    assert BlockDigests.of_pool(memory).of([0], WHOLE) != before


def test_swapped_blocks_and_zeros_are_told_apart() -> None:
    memory = pool(64, 3)
    digests = BlockDigests.of_pool(memory)
    before = digests.of([0, 1], WHOLE)[:, 0].tolist()
    memory.block(0)[:], memory.block(1)[:] = bytes(memory.block(1)), bytes(memory.block(0))
    assert digests.of([0, 1], WHOLE)[:, 0].tolist() == before[::-1] != before
    memory.block(2)[:] = bytes(64)
    assert digests.of([2], WHOLE) != 0


@pytest.mark.anyio
async def test_threads_digest_beside_the_loop() -> None:
    memory = pool(4096, 8)
    threads = DigestThreads(memory)
    results = await asyncio.gather(*(threads.digests([block_id], WHOLE) for block_id in range(8)))
    assert np.array_equal(np.concatenate(results), BlockDigests.of_pool(memory).of(range(8), WHOLE))
    threads.close()
