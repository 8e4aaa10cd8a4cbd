"""store_kv compiled: the cases the interpreter runs, bfloat16, and slots past 2**31 elements."""

import pytest
import torch

from kernels.elementwise import reference
from kernels.elementwise.store_kv import store_kv
from tests.support.cases.kernel_cases import STORE_CASES, StoreCase, store_inputs

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", STORE_CASES)
def test_pool_equals_the_references(case: StoreCase, dtype: torch.dtype) -> None:
    inputs = store_inputs(case, dtype, "cuda")
    expected = inputs.kv_pool.clone()
    reference.store_kv(inputs.k, inputs.v, expected, inputs.layer, inputs.slot_mapping)
    store_kv(inputs.k, inputs.v, inputs.kv_pool, inputs.layer, inputs.slot_mapping)
    assert torch.equal(inputs.kv_pool, expected)


def test_slots_past_two_to_the_31_elements() -> None:
    shape = (2**31 // (2 * 8 * 16 * 128) + 2, 1, 2, 8, 16, 128)
    kv_pool = torch.zeros(shape, dtype=torch.float16, device="cuda")
    rows = torch.randn(1, 8, 128, dtype=torch.float16, device="cuda")
    slot = torch.tensor([shape[0] * 16 - 1], device="cuda")
    store_kv(rows, 2 * rows, kv_pool, 0, slot)
    assert torch.equal(kv_pool[-1, 0, :, :, 15], torch.cat((rows, 2 * rows)))
    assert not kv_pool[:-1].any()
