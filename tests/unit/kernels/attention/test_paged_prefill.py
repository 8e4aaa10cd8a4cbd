"""paged_prefill against its torch reference; interpreted where there is no GPU."""

import dataclasses
from typing import Any

import pytest
import torch
from triton.runtime.interpreter import InterpretedFunction

from kernels.attention.paged_prefill import paged_prefill, paged_prefill_kernel
from kernels.attention.prefill_plan import PrefillPlan, PrefillTile
from tests.support.cases.prefill_cases import (
    SMALL_CASES,
    TOLERANCES,
    PrefillCase,
    prefill_inputs,
    worst_error,
)

# The interpreter turns loop bounds, arrays of one element, into numbers the old way.
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")

INTERPRETED = isinstance(paged_prefill_kernel, InterpretedFunction)
DEVICE = "cpu" if INTERPRETED else "cuda"
TILE = PrefillTile(num_rows=16, num_keys=16, num_warps=4, num_stages=1)
CHUNKS = PrefillCase((17, 33), (50, 33), window=9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("case", SMALL_CASES)
def test_equals_the_reference(case: PrefillCase, dtype: torch.dtype) -> None:
    inputs = prefill_inputs(case, dtype, DEVICE)
    assert worst_error(inputs.computed(TILE), inputs.expected()) <= TOLERANCES[dtype]


@pytest.mark.parametrize("tile", [(16, 32), (32, 16)])
def test_tiles_of_other_shapes_give_the_same(tile: tuple[int, int]) -> None:
    inputs = prefill_inputs(CHUNKS, torch.float32, DEVICE)
    output = inputs.computed(PrefillTile(*tile, num_warps=4, num_stages=1))
    assert worst_error(output, inputs.expected()) <= TOLERANCES[torch.float32]


@pytest.mark.parametrize(
    "mutation",
    [
        {"window": 8},
        {"window": 10},
        {"window": 0, "block_size": 16},
        {"context_lens": (49, 33)},
        {"query_lens": (18, 32)},
    ],
)
def test_a_wrong_mask_is_found(mutation: dict[str, Any]) -> None:
    """One key more or less than a row may see is far outside every type's tolerance."""
    inputs = prefill_inputs(CHUNKS, torch.float32, DEVICE)
    error = worst_error(inputs.computed(TILE, **mutation), inputs.expected())
    assert error > 2 * max(TOLERANCES.values())


def test_one_wrong_value_is_found() -> None:
    inputs = prefill_inputs(PrefillCase((5,), (37,)), torch.float32, DEVICE)
    expected = inputs.expected()
    block = int(inputs.block_tables[0, 1])
    inputs.kv_pool[block, 1, 1, 0, 3, 7] += 0.1
    assert worst_error(inputs.computed(TILE), expected) > 2 * TOLERANCES[torch.float32]


def test_nan_is_found() -> None:
    ones = torch.ones(2, 1, 4)
    assert worst_error(ones * float("nan"), ones) == float("inf")
    assert worst_error(ones, ones) == 0


def test_bfloat16_is_refused_by_the_interpreter() -> None:
    inputs = prefill_inputs(CHUNKS, torch.bfloat16, DEVICE)
    if INTERPRETED:
        with pytest.raises(TypeError, match="bfloat16"):
            inputs.computed(TILE)
    else:
        error = worst_error(inputs.computed(TILE), inputs.expected())
        assert error <= TOLERANCES[torch.bfloat16]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"q": torch.zeros(49, 2, 16)}, ValueError),
        ({"q": torch.zeros(50, 4, 16)}, ValueError),
        ({"q": torch.zeros(50, 2, 32)[..., ::2]}, ValueError),
        ({"q": torch.zeros(50, 2, 16, dtype=torch.float16)}, TypeError),
        ({"q": torch.zeros(50, 2, 16, device="meta")}, ValueError),
        ({"layer": 2}, ValueError),
        ({"block_tables": torch.zeros(1, 5, dtype=torch.int32)}, ValueError),
        ({"block_tables": torch.zeros(2, 5, dtype=torch.int64)}, TypeError),
        ({"kv_pool": torch.zeros(9, 2, 2, 1, 16, 32)[..., ::2]}, ValueError),
        ({"kv_pool": torch.zeros(9, 2, 2, 2, 16, 16)}, ValueError),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], error: type[Exception]) -> None:
    inputs = prefill_inputs(CHUNKS, torch.float32, "cpu")
    plan = PrefillPlan.build((17, 33), (50, 33), 2, inputs.kv_pool, 9)
    arguments: dict[str, Any] = {
        "q": inputs.q,
        "kv_pool": inputs.kv_pool,
        "layer": 1,
        "block_tables": inputs.block_tables,
    } | change
    output = torch.empty_like(arguments["q"])
    with pytest.raises(error):
        paged_prefill(plan=plan, scale=0.25, output=output, **arguments)


def test_more_rows_than_positions_cannot_be_planned() -> None:
    pool = prefill_inputs(CHUNKS, torch.float32, "cpu").kv_pool
    with pytest.raises(ValueError, match="above"):
        PrefillPlan.build((17, 34), (50, 33), 2, pool)
    plan = PrefillPlan.build((17, 33), (50, 33), 2, pool)
    assert dataclasses.replace(plan, window=5).window_keys == 5
