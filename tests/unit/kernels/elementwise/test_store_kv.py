"""store_kv against its torch reference; interpreted where there is no GPU."""

import dataclasses

import pytest
import torch
from triton.runtime.interpreter import InterpretedFunction

from kernels.elementwise import reference
from kernels.elementwise.store_kv import store_kv, store_kv_kernel
from tests.support.cases.kernel_cases import STORE_CASES, StoreCase, StoreInputs, store_inputs

INTERPRETED = isinstance(store_kv_kernel, InterpretedFunction)
DEVICE = "cpu" if INTERPRETED else "cuda"
DTYPES = (torch.float32, torch.float16)


def test_without_a_gpu_the_kernel_is_interpreted() -> None:
    assert torch.cuda.is_available() != INTERPRETED


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", STORE_CASES)
def test_pool_equals_the_references(case: StoreCase, dtype: torch.dtype) -> None:
    inputs = store_inputs(case, dtype, DEVICE)
    expected = _reference_pool(inputs)
    _store(inputs)
    assert torch.equal(inputs.kv_pool, expected)


@pytest.mark.parametrize("case", STORE_CASES[:2])
def test_one_wrong_element_is_found(case: StoreCase) -> None:
    inputs = store_inputs(case, torch.float32, DEVICE)
    expected = _reference_pool(inputs)
    inputs.v[-1, -1, -1] += 1e-3
    _store(inputs)
    assert not torch.equal(inputs.kv_pool, expected)


def test_reference_writes_exactly_the_slots() -> None:
    inputs = store_inputs(STORE_CASES[1], torch.float32, "cpu")
    expected = inputs.kv_pool.clone()
    for row, slot in enumerate(inputs.slot_mapping.tolist()):
        if slot >= 0:
            block, offset = divmod(slot, expected.shape[4])
            expected[block, inputs.layer, 0, :, offset] = inputs.k[row]
            expected[block, inputs.layer, 1, :, offset] = inputs.v[row]
    assert torch.equal(_reference_pool(inputs), expected)


def test_bfloat16_is_refused_by_the_interpreter() -> None:
    inputs = store_inputs(STORE_CASES[0], torch.bfloat16, DEVICE)
    if INTERPRETED:
        with pytest.raises(TypeError, match="bfloat16"):
            _store(inputs)
    else:
        expected = _reference_pool(inputs)
        _store(inputs)
        assert torch.equal(inputs.kv_pool, expected)


def test_nothing_happens_without_tokens() -> None:
    inputs = store_inputs(STORE_CASES[0], torch.float32, DEVICE)
    before = inputs.kv_pool.clone()
    store_kv(inputs.k[:0], inputs.v[:0], inputs.kv_pool, 1, inputs.slot_mapping[:0])
    assert torch.equal(inputs.kv_pool, before)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"k": torch.zeros(1, 2, 16)}, ValueError),
        ({"layer": 3}, ValueError),
        ({"slot_mapping": torch.zeros(1, dtype=torch.int32)}, TypeError),
        ({"slot_mapping": torch.zeros(2, dtype=torch.int64)}, ValueError),
        ({"k": torch.zeros(1, 1, 16, dtype=torch.float16)}, TypeError),
        ({"v": torch.zeros(1, 1, 32)[..., ::2]}, ValueError),
        ({"kv_pool": torch.zeros(7, 3, 2, 1, 16, 32)[..., ::2]}, ValueError),
        ({"k": torch.zeros(1, 1, 16, device="meta")}, ValueError),
    ],
)
def test_what_does_not_fit_is_refused(
    change: dict[str, torch.Tensor | int], error: type[Exception]
) -> None:
    inputs = store_inputs(STORE_CASES[0], torch.float32, "cpu")
    with pytest.raises(error):
        _store(dataclasses.replace(inputs, **change))  # type: ignore[arg-type]


def _store(inputs: StoreInputs) -> None:
    store_kv(inputs.k, inputs.v, inputs.kv_pool, inputs.layer, inputs.slot_mapping)


def _reference_pool(inputs: StoreInputs) -> torch.Tensor:
    pool = inputs.kv_pool.clone()
    reference.store_kv(inputs.k, inputs.v, pool, inputs.layer, inputs.slot_mapping)
    return pool
