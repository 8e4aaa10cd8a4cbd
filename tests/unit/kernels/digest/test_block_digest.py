"""The digest of blocks, bit for bit: kernel, torch reference, and numpy in io processes."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from triton.runtime.interpreter import InterpretedFunction

from kernels.digest import reference
from kernels.digest.block_digest import TILE_WORDS, block_digest_kernel, block_digests
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


def digests_by(function: object, pool: torch.Tensor, blocks: list[int]) -> list[int]:
    device = DEVICE if function is block_digests else "cpu"
    ids = torch.tensor(blocks, dtype=torch.int64, device=device)
    output = torch.zeros_like(ids)
    function(pool.to(device), ids, output)  # type: ignore[operator]
    return [word % 2**64 for word in output.tolist()]


@pytest.mark.parametrize("num_words", [1, 7, TILE_WORDS, TILE_WORDS + 5])
def test_three_ways_one_digest(num_words: int) -> None:
    memory = filled(6, num_words, seed=num_words)
    blocks = [5, 0, 3, 3]
    wanted = BlockDigests(memory).of(blocks, WHOLE)[:, 0].tolist()
    assert digests_by(reference.block_digests, pool_of(memory), blocks) == wanted
    assert digests_by(block_digests, pool_of(memory), blocks) == wanted


@pytest.mark.parametrize("function", [reference.block_digests, block_digests])
@pytest.mark.parametrize("num_words", [3, TILE_WORDS // 3 + 1])
def test_rows_may_be_the_same_part_of_each_block(function: object, num_words: int) -> None:
    memory = filled(5, num_words, seed=num_words, num_layers=6)
    groups = layer_groups(memory.layout)
    blocks, pool = [4, 0, 2, 2], pool_of(memory)
    wanted = BlockDigests(memory).of(blocks, groups.all)
    for group in range(len(groups)):
        part = pool.to(DEVICE)[:, groups.span(GroupRange(group, 1))]
        assert not part.is_contiguous()
        assert digests_by(function, part, blocks) == wanted[:, group].tolist()


@settings(deadline=None, max_examples=25)
@given(num_words=st.integers(1, 600), seed=st.integers(0, 9), blocks=st.lists(st.integers(0, 3)))
def test_the_reference_is_what_io_processes_compute(
    num_words: int, seed: int, blocks: list[int]
) -> None:
    memory = filled(4, num_words, seed)
    wanted = BlockDigests(memory).of(blocks, WHOLE)[:, 0].tolist()
    assert digests_by(reference.block_digests, pool_of(memory), blocks) == wanted


def test_a_changed_bit_or_two_words_that_changed_places_are_seen() -> None:
    memory = filled(2, 64, seed=3)
    memory.block(1)[:] = memory.block(0)
    pool = pool_of(memory)
    pool[1, 77] ^= 16
    left, right = digests_by(block_digests, pool, [0, 1])
    assert left != right
    memory.block(1)[:] = memory.block(0)
    pool[1, :8], pool[1, 8:16] = pool[0, 8:16].clone(), pool[0, :8].clone()
    left, right = digests_by(block_digests, pool, [0, 1])
    assert left != right


def test_what_does_not_fit_is_refused() -> None:
    ids = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    with pytest.raises(ValueError, match="no whole words of 8"):
        block_digests(torch.zeros(2, 12, dtype=torch.uint8, device=DEVICE), ids, ids.clone())
    with pytest.raises(ValueError, match="no whole words of 8"):  # neighbouring rows lie 12 apart
        block_digests(torch.zeros(2, 12, dtype=torch.uint8, device=DEVICE)[:, :8], ids, ids.clone())
    with pytest.raises(ValueError, match="no whole words of 8"):
        block_digests(
            torch.zeros(2, 16, dtype=torch.uint8, device=DEVICE)[:, 4:12], ids, ids.clone()
        )
    with pytest.raises(TypeError, match="is not u8"):
        block_digests(torch.zeros(16, 2, dtype=torch.uint8, device=DEVICE).T, ids, ids.clone())
    with pytest.raises(TypeError, match="is not u8"):
        block_digests(torch.zeros(2, 16, device=DEVICE), ids, ids.clone())
    with pytest.raises(ValueError, match="blocks"):
        pool = torch.zeros(2, 16, dtype=torch.uint8, device=DEVICE)
        block_digests(pool, ids, torch.zeros(2, dtype=torch.int64, device=DEVICE))
