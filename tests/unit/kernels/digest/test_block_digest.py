"""The digest of blocks, bit for bit: kernel, torch reference, and numpy in io processes."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from triton.runtime.interpreter import InterpretedFunction

from kernels.digest import reference
from kernels.digest.block_digest import (
    NUM_PIECES,
    TILE_WORDS,
    WORD_BYTES,
    block_digest_kernel,
    block_digests,
)
from shared.kv.digest import BlockDigests
from shared.kv.layer_groups import GroupRange, layer_groups
from shared.kv.layout import KVLayout
from shared.kv.memory import KVMemory

pytestmark = pytest.mark.filterwarnings(  # the interpreter makes a loop's bound of an array of one
    "ignore:Conversion of an array with ndim:DeprecationWarning"
)
DEVICE = "cpu" if isinstance(block_digest_kernel, InterpretedFunction) else "cuda"


WHOLE = GroupRange(0, 1)
"""of a pool of one layer"""


def layout_of(num_words: int, num_layers: int = 1) -> KVLayout:
    return KVLayout("m", "float32", num_layers, 2, 1, 1, num_words)


def filled(num_blocks: int, num_words: int, seed: int, num_layers: int = 1) -> KVMemory:
    memory = KVMemory.create(layout_of(num_words, num_layers), num_blocks)
    content = np.random.default_rng(seed).bytes(len(memory.blocks))
    memory.blocks[:] = content
    return memory


def pool_of(memory: KVMemory) -> torch.Tensor:
    flat = torch.frombuffer(memory.blocks, dtype=torch.uint8)
    num_bytes = memory.layout.block_bytes
    return flat[: memory.num_blocks * num_bytes].view(memory.num_blocks, num_bytes)


def digests_by(
    function: object,
    memory: KVMemory,
    blocks: list[int],
    groups: GroupRange | None = None,
) -> list[list[int]]:
    """[blocks, groups], of all groups if none are named."""
    device = DEVICE if function is block_digests else "cpu"
    of_layout = layer_groups(memory.layout)
    groups = groups or of_layout.all
    bounds = torch.tensor(of_layout.bounds(WORD_BYTES), device=device)
    ids = torch.tensor(blocks, dtype=torch.int64, device=device)
    shape = len(blocks), groups.num, NUM_PIECES
    output = torch.full(shape, 7, dtype=torch.int64, device=device)
    function(pool_of(memory).to(device), bounds, groups.first, ids, output)  # type: ignore[operator]
    return [[word % 2**64 for word in row] for row in output.sum(2).tolist()]


@pytest.mark.parametrize("num_words", [1, 7, TILE_WORDS, TILE_WORDS * (NUM_PIECES + 1) + 5])
def test_three_ways_one_digest(num_words: int) -> None:
    memory = filled(6, num_words, seed=num_words)
    blocks = [5, 0, 3, 3]
    wanted = BlockDigests.of_pool(memory).of(blocks, WHOLE).tolist()
    assert digests_by(reference.block_digests, memory, blocks) == wanted
    assert digests_by(block_digests, memory, blocks) == wanted


@pytest.mark.parametrize("function", [reference.block_digests, block_digests])
@pytest.mark.parametrize("num_words", [3, TILE_WORDS // 3 + 1])
def test_each_part_of_a_block_has_a_digest_of_its_own(function: object, num_words: int) -> None:
    memory = filled(5, num_words, seed=num_words, num_layers=6)
    blocks = [4, 0, 2, 2]
    number = len(layer_groups(memory.layout))
    wanted = BlockDigests.of_pool(memory).of(blocks, layer_groups(memory.layout).all)
    assert number > 1
    for first in range(number):
        for end in range(first + 1, number + 1):
            found = digests_by(function, memory, blocks, GroupRange(first, end - first))
            assert found == wanted[:, first:end].tolist()


@settings(deadline=None, max_examples=25)
@given(num_words=st.integers(1, 600), seed=st.integers(0, 9), blocks=st.lists(st.integers(0, 3)))
def test_the_reference_is_what_io_processes_compute(
    num_words: int, seed: int, blocks: list[int]
) -> None:
    memory = filled(4, num_words, seed)
    wanted = BlockDigests.of_pool(memory).of(blocks, WHOLE).tolist()
    assert digests_by(reference.block_digests, memory, blocks) == wanted


def test_a_changed_bit_or_two_words_that_changed_places_are_seen() -> None:
    memory = filled(2, 64, seed=3)
    memory.block(1)[:] = memory.block(0)
    pool = pool_of(memory)
    pool[1, 77] ^= 16
    left, right = digests_by(block_digests, memory, [0, 1])
    assert left != right
    memory.block(1)[:] = memory.block(0)
    pool[1, :8], pool[1, 8:16] = pool[0, 8:16].clone(), pool[0, :8].clone()
    left, right = digests_by(block_digests, memory, [0, 1])
    assert left != right


def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.zeros(*shape, dtype=dtype, device=DEVICE)


def test_no_block_is_no_work() -> None:
    block_digests(zeros(2, 16, dtype=torch.uint8), zeros(2), 0, zeros(0), zeros(0, 1, 8))


def test_what_does_not_fit_is_refused() -> None:
    pool, bounds, ids, found = zeros(2, 16, dtype=torch.uint8), zeros(3), zeros(1), zeros(1, 2, 8)
    with pytest.raises(ValueError, match="no whole words of 8"):
        block_digests(zeros(2, 12, dtype=torch.uint8), bounds, 0, ids, found)
    with pytest.raises(ValueError, match="no whole words of 8"):  # words begin at 4 bytes
        block_digests(zeros(20, dtype=torch.uint8)[4:].view(1, 16), bounds, 0, ids, found)
    with pytest.raises(TypeError, match="is not u8"):
        block_digests(zeros(2, 32, dtype=torch.uint8)[:, :16], bounds, 0, ids, found)
    with pytest.raises(TypeError, match="is not u8"):
        block_digests(zeros(2, 16, dtype=torch.float32), bounds, 0, ids, found)
    with pytest.raises(TypeError, match="need contiguous int64"):
        block_digests(pool, bounds, 0, zeros(1, dtype=torch.int32), found)
    with pytest.raises(TypeError, match="need contiguous int64"):
        block_digests(pool, bounds, 0, ids, zeros(2, 2, 8)[:, :1])
    with pytest.raises(ValueError, match="blocks"):
        block_digests(pool, bounds, 0, zeros(2), found)
    with pytest.raises(ValueError, match="digests"):
        block_digests(pool, bounds, 0, ids, zeros(1, 2, 7))
    for first_part in (-1, 1, 2):
        with pytest.raises(ValueError, match="parts from"):
            block_digests(pool, bounds, first_part, ids, found)
