"""paged_prefill compiled: every type and head size, both forms, and blocks past 2**31 elements."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from kernels.attention.prefill_plan import portable_tile, prefill_tile
from tests.support.cases.prefill_cases import (
    LARGE_CASES,
    SMALL_CASES,
    TOLERANCES,
    PrefillCase,
    prefill_inputs,
    worst_error,
)

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
HEAD_DIMS = (64, 80, 96, 128, 256)
CHUNK = PrefillCase((300,), (700,), 8, 2, 128)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("case", [LARGE_CASES[0], LARGE_CASES[2]])
def test_every_type_and_head_size(case: PrefillCase, head_dim: int, dtype: torch.dtype) -> None:
    inputs = prefill_inputs(replace(case, head_dim=head_dim), dtype, "cuda")
    assert worst_error(inputs.computed(), inputs.expected()) <= TOLERANCES[dtype]


@pytest.mark.parametrize("case", [*SMALL_CASES, *LARGE_CASES])
def test_every_case(case: PrefillCase) -> None:
    inputs = prefill_inputs(replace(case, head_dim=128), torch.bfloat16, "cuda")
    assert worst_error(inputs.computed(), inputs.expected()) <= TOLERANCES[torch.bfloat16]


@pytest.mark.parametrize("case", LARGE_CASES[:3])
def test_the_portable_form(case: PrefillCase) -> None:
    inputs = prefill_inputs(replace(case, head_dim=128), torch.bfloat16, "cuda")
    output = inputs.computed(portable_tile(torch.bfloat16, 128))
    assert worst_error(output, inputs.expected()) <= TOLERANCES[torch.bfloat16]


def test_a_hopper_gpu_gets_its_own_form() -> None:
    inputs = prefill_inputs(CHUNK, torch.bfloat16, "cuda")
    assert prefill_tile(inputs.kv_pool).hopper == (torch.cuda.get_device_capability()[0] == 9)


@pytest.mark.parametrize("mutation", [{"window": 650}, {"context_lens": (699,)}])
def test_a_wrong_mask_is_found(mutation: dict[str, Any]) -> None:
    inputs = prefill_inputs(CHUNK, torch.bfloat16, "cuda")
    error = worst_error(inputs.computed(**mutation), inputs.expected())
    assert error > 2 * TOLERANCES[torch.bfloat16]


def test_the_same_bits_every_time() -> None:
    inputs = prefill_inputs(CHUNK, torch.bfloat16, "cuda")
    first = inputs.computed()
    assert all(torch.equal(inputs.computed(), first) for _ in range(20))


def test_blocks_past_two_to_the_31_elements() -> None:
    small = prefill_inputs(PrefillCase((130,), (130,), 2, 1, 128), torch.bfloat16, "cuda")
    num_small, *shape = small.kv_pool.shape
    num_blocks = 2**31 // small.kv_pool[0].numel() + num_small
    pool = torch.empty((num_blocks, *shape), dtype=torch.bfloat16, device="cuda")
    pool[-num_small:] = small.kv_pool
    tables = small.block_tables + (num_blocks - num_small)
    inputs = replace(small, kv_pool=pool, block_tables=tables)
    assert torch.equal(inputs.computed(), small.computed())
