"""gather_blocks and scatter_blocks against their references; interpreted where there is no GPU."""

from dataclasses import dataclass

import pytest
import torch
from triton.runtime.interpreter import InterpretedFunction

from kernels.elementwise import reference
from kernels.elementwise.copy_blocks import copy_blocks_kernel, gather_blocks, scatter_blocks

INTERPRETED = isinstance(copy_blocks_kernel, InterpretedFunction)
DEVICE = "cpu" if INTERPRETED else "cuda"
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class CopyCase:
    """Shapes of one copy."""

    shape: tuple[int, int, int, int, int, int]
    """of the pool"""
    blocks: tuple[int, ...]
    layers: tuple[int, int]
    dtype: torch.dtype = torch.int64
    """of the block ids"""


CASES = (
    CopyCase((4, 3, 2, 2, 16, 64), (2,), (0, 3)),
    CopyCase((6, 3, 2, 3, 7, 80), (5, 0, 3), (1, 1), torch.int32),
    CopyCase((5, 4, 2, 1, 1, 4), (4, 3, 2, 1, 0), (1, 2)),
    CopyCase((3, 2, 2, 4, 32, 128), (1, 2), (0, 2), torch.int32),
    CopyCase((3, 2, 2, 1, 16, 64), (), (0, 2)),
    CopyCase((3, 2, 2, 1, 16, 64), (1,), (1, 0)),
)


def _tensors(case: CopyCase, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Pool and packed tensor of random bytes, NaN among them, and block ids."""
    generator = torch.Generator().manual_seed(1)
    packed_shape = (len(case.blocks), case.layers[1], *case.shape[2:])
    pool, packed = (
        torch.randint(
            256,
            (*shape[:-1], shape[-1] * dtype.itemsize),
            generator=generator,
            dtype=torch.uint8,
        ).view(dtype)
        for shape in (case.shape, packed_shape)
    )
    blocks = torch.tensor(case.blocks, dtype=case.dtype)
    return pool.to(DEVICE), packed.to(DEVICE), blocks.to(DEVICE)


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.view(torch.uint8), other.view(torch.uint8))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES)
def test_gathered_blocks_equal_the_references(case: CopyCase, dtype: torch.dtype) -> None:
    kv_pool, output, blocks = _tensors(case, dtype)
    before, expected = kv_pool.clone(), torch.empty_like(output)
    gather_blocks(kv_pool, blocks, case.layers, output)
    reference.gather_blocks(kv_pool, blocks, case.layers, expected)
    assert _equal(output, expected)
    assert _equal(kv_pool, before)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES)
def test_scattered_blocks_equal_the_references(case: CopyCase, dtype: torch.dtype) -> None:
    kv_pool, packed, blocks = _tensors(case, dtype)
    expected = kv_pool.clone()
    scatter_blocks(packed, kv_pool, blocks, case.layers)
    reference.scatter_blocks(packed, expected, blocks, case.layers)
    assert _equal(kv_pool, expected)


@pytest.mark.parametrize("case", CASES[:4])
def test_one_wrong_byte_is_found(case: CopyCase) -> None:
    kv_pool, packed, blocks = _tensors(case, torch.float16)
    expected = kv_pool.clone()
    reference.scatter_blocks(packed, expected, blocks, case.layers)
    packed.view(torch.uint8).view(-1)[-1] += 1
    scatter_blocks(packed, kv_pool, blocks, case.layers)
    assert not _equal(kv_pool, expected)
    gathered = torch.empty_like(packed)
    gather_blocks(expected, blocks, case.layers, gathered)
    assert not _equal(gathered, packed)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"kv_pool": torch.zeros(3, 2, 2, 1, 16)}, ValueError),
        ({"kv_pool": torch.zeros(3, 2, 2, 1, 16, 16)[..., ::2]}, ValueError),
        ({"kv_pool": torch.zeros(3, 2, 2, 1, 16, 8, device="meta")}, ValueError),
        ({"block_ids": torch.zeros(1, 2, dtype=torch.int64)}, ValueError),
        ({"block_ids": torch.zeros(4, dtype=torch.int64)[::2]}, ValueError),
        ({"block_ids": torch.zeros(2, dtype=torch.int16)}, TypeError),
        ({"layers": (1, 2)}, ValueError),
        ({"layers": (-1, 2)}, ValueError),
        ({"layers": (1, -1)}, ValueError),
        ({"output": torch.zeros(2, 2, 2, 1, 16, 4)}, ValueError),
        ({"output": torch.zeros(2, 2, 2, 1, 16, 16)[..., ::2]}, ValueError),
        ({"output": torch.zeros(2, 2, 2, 1, 16, 8).half()}, TypeError),
        (
            {"kv_pool": torch.zeros(3, 2, 2, 1, 16, 3), "output": torch.zeros(2, 2, 2, 1, 16, 3)},
            ValueError,
        ),
    ],
)
def test_what_does_not_fit_is_refused(
    change: dict[str, torch.Tensor | tuple[int, int]], error: type[Exception]
) -> None:
    arguments = {
        "kv_pool": torch.zeros(3, 2, 2, 1, 16, 8),
        "block_ids": torch.tensor([0, 2]),
        "layers": (0, 2),
        "output": torch.zeros(2, 2, 2, 1, 16, 8),
    } | change
    with pytest.raises(error):
        gather_blocks(**arguments)  # type: ignore[arg-type]
