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
from shared.kv.layout import KVLayout
from shared.kv.memory import KVMemory

DEVICE = "cpu" if isinstance(block_digest_kernel, InterpretedFunction) else "cuda"


def layout_of(num_words: int) -> KVLayout:
    return KVLayout("m", "float32", 1, 2, 1, 1, num_words)


def filled(num_blocks: int, num_words: int, seed: int) -> KVMemory:
    memory = KVMemory.create(layout_of(num_words), num_blocks)
    content = np.random.default_rng(seed).bytes(len(memory.blocks))
    memory.blocks[:] = content
    return memory


def pool_of(memory: KVMemory) -> torch.Tensor:
    flat = torch.frombuffer(memory.blocks, dtype=torch.uint8)
    num_bytes = memory.layout.block_bytes
    return flat[: memory.num_blocks * num_bytes].view(memory.num_blocks, num_bytes)


def digests_by(
    function: object, pool: torch.Tensor, blocks: list[int], **options: int
) -> list[int]:
    device = DEVICE if function is block_digests else "cpu"
    ids = torch.tensor(blocks, dtype=torch.int64, device=device)
    output = torch.zeros_like(ids)
    function(pool.to(device), ids, output, **options)  # type: ignore[operator]
    return [word % 2**64 for word in output.tolist()]


@pytest.mark.parametrize("num_words", [1, 7, TILE_WORDS, TILE_WORDS + 5])
@pytest.mark.parametrize("num_programs", [1, 3, 8])
def test_three_ways_one_digest(num_words: int, num_programs: int) -> None:
    memory = filled(6, num_words, seed=num_words)
    blocks = [5, 0, 3, 3]
    wanted = list(BlockDigests(memory).of(blocks))
    assert digests_by(reference.block_digests, pool_of(memory), blocks) == wanted
    options = {"num_programs": num_programs}
    assert digests_by(block_digests, pool_of(memory), blocks, **options) == wanted


@settings(deadline=None, max_examples=25)
@given(num_words=st.integers(1, 600), seed=st.integers(0, 9), blocks=st.lists(st.integers(0, 3)))
def test_the_reference_is_what_io_processes_compute(
    num_words: int, seed: int, blocks: list[int]
) -> None:
    memory = filled(4, num_words, seed)
    wanted = list(BlockDigests(memory).of(blocks)) if blocks else []
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
    with pytest.raises(ValueError, match="no multiple of 8"):
        block_digests(torch.zeros(2, 12, dtype=torch.uint8, device=DEVICE), ids, ids.clone())
    with pytest.raises(TypeError, match="is not u8"):
        block_digests(torch.zeros(2, 16, device=DEVICE), ids, ids.clone())
    with pytest.raises(ValueError, match="blocks"):
        pool = torch.zeros(2, 16, dtype=torch.uint8, device=DEVICE)
        block_digests(pool, ids, torch.zeros(2, dtype=torch.int64, device=DEVICE))
