"""paged_decode against its torch reference; interpreted where there is no GPU."""

import dataclasses
from typing import Any

import pytest
import torch
from triton.runtime.interpreter import InterpretedFunction

from kernels.attention.decode_plan import DecodePlan
from kernels.attention.decode_tiles import DecodeTile
from kernels.attention.paged_decode import paged_decode, paged_decode_kernel
from tests.support.cases.decode_cases import (
    LAYER,
    MAX_ERRORS,
    DecodeCase,
    DecodeInputs,
    attend,
    decode_inputs,
    expected,
    relative_error,
)

pytestmark = pytest.mark.filterwarnings(  # Triton's interpreter, for a loop over a loaded number
    "ignore:Conversion of an array with ndim:DeprecationWarning",
    "ignore:invalid value encountered:RuntimeWarning",
)
INTERPRETED = isinstance(paged_decode_kernel, InterpretedFunction)
DEVICE = "cpu" if INTERPRETED else "cuda"
TILE = DecodeTile(num_keys=16, num_warps=4, num_stages=2, num_programs=5)
CASES = (
    DecodeCase((1,), num_kv_heads=1, group=1),
    DecodeCase((16, 17, 0, 15), group=2, strided=True),
    DecodeCase((0, 0, 33), head_dim=80, group=3),
    DecodeCase((70, 1, 40), head_dim=96, group=5, num_kv_heads=1, block_size=32),
    DecodeCase((90, 16, 31), window=17, block_size=32),
    DecodeCase((64, 100), window=1, group=16, num_kv_heads=1, block_size=64),
    DecodeCase((130,), head_dim=128, block_size=128, num_kv_heads=1, window=100),
)
SPLIT = DecodeCase((3, 90), num_kv_heads=1)
"""its long row is shared by four programs"""


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("merge_apart", [False, True], ids=["in_place", "apart"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["fp32", "fp16"])
@pytest.mark.parametrize("case", CASES)
def test_output_equals_the_references(
    case: DecodeCase, dtype: torch.dtype, merge_apart: bool
) -> None:
    inputs = decode_inputs(case, dtype, DEVICE)
    output = attend(case, inputs, dataclasses.replace(TILE, merge_apart=merge_apart))
    assert relative_error(output, expected(case, inputs)) <= MAX_ERRORS[dtype]


def test_rows_of_length_zero_are_zeros() -> None:
    inputs = decode_inputs(CASES[2], torch.float32, DEVICE)
    output = attend(CASES[2], inputs, TILE)
    assert not output[:2].any() and output[2].all()


@pytest.mark.parametrize("num_programs", [1, 2, 7, 40])
def test_any_number_of_programs_gives_the_answer(num_programs: int) -> None:
    case = DecodeCase((50, 0, 23, 1))
    inputs = decode_inputs(case, torch.float32, DEVICE)
    tile = dataclasses.replace(TILE, num_programs=num_programs)
    assert relative_error(attend(case, inputs, tile), expected(case, inputs)) <= 2e-6


def test_same_inputs_give_the_same_bits() -> None:
    inputs = decode_inputs(SPLIT, torch.float32, DEVICE)
    assert torch.equal(attend(SPLIT, inputs, TILE), attend(SPLIT, inputs, TILE))


def _one_key(inputs: DecodeInputs) -> None:
    block = int(inputs.block_tables[1, 89 // 16])
    inputs.kv_pool[block, LAYER, 0, 0, 89 % 16, 5] += 1.0


def _one_value(inputs: DecodeInputs) -> None:
    block = int(inputs.block_tables[1, 0])
    inputs.kv_pool[block, LAYER, 1, 0, 0, 5] += 50.0


def _two_blocks_swapped(inputs: DecodeInputs) -> None:
    inputs.block_tables[1, :3] = inputs.block_tables[1, [0, 2, 1]].clone()
    inputs.block_tables[1, 3] = inputs.block_tables[1, 0]


def _one_key_fewer(inputs: DecodeInputs) -> None:
    inputs.context_lens[1] -= 1


def _unwritten_slot_seen(inputs: DecodeInputs) -> None:
    inputs.context_lens[0] += 1


def _two_heads_swapped(inputs: DecodeInputs) -> None:
    inputs.q[1, :2] = inputs.q[1, [1, 0]].clone()


@pytest.mark.parametrize(
    "mutate",
    [
        _one_key,
        _one_value,
        _two_blocks_swapped,
        _one_key_fewer,
        _unwritten_slot_seen,
        _two_heads_swapped,
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["fp32", "fp16"])
def test_a_wrong_answer_is_found(mutate: Any, dtype: torch.dtype) -> None:
    inputs = decode_inputs(SPLIT, dtype, DEVICE)
    wanted = expected(SPLIT, inputs)
    mutate(inputs)
    assert relative_error(attend(SPLIT, inputs, TILE), wanted) > MAX_ERRORS[dtype]


@pytest.mark.parametrize("window", [16, 18])
def test_a_window_off_by_one_is_found(window: int) -> None:
    case = dataclasses.replace(SPLIT, window=17)
    inputs = decode_inputs(case, torch.float32, DEVICE)
    output = attend(dataclasses.replace(case, window=window), inputs, TILE)
    assert relative_error(output, expected(case, inputs)) > MAX_ERRORS[torch.float32]


def test_parts_of_an_earlier_call_are_not_used() -> None:
    """One plan serves layers and steps: lengths change on the device, the plan is filled again."""
    inputs = decode_inputs(SPLIT, torch.float32, DEVICE)
    plan = DecodePlan.allocate(inputs.context_lens, 4, inputs.kv_pool, TILE)
    output = torch.empty_like(inputs.q)
    for lengths in ((3, 90), (0, 17), (3, 60)):
        inputs.context_lens.copy_(torch.tensor(lengths))
        plan.fill()
        paged_decode(
            inputs.q, inputs.kv_pool, LAYER, inputs.block_tables, plan, SPLIT.scale, output
        )
        assert relative_error(output, expected(SPLIT, inputs)) <= 2e-6


def test_bfloat16_is_refused_by_the_interpreter() -> None:
    inputs = decode_inputs(CASES[0], torch.bfloat16, DEVICE)
    if INTERPRETED:
        with pytest.raises(TypeError, match="bfloat16"):
            attend(CASES[0], inputs, TILE)
    else:
        error = relative_error(attend(CASES[0], inputs, TILE), expected(CASES[0], inputs))
        assert error <= MAX_ERRORS[torch.bfloat16]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"q": torch.zeros(2, 3, 64)}, ValueError),
        ({"q": torch.zeros(2, 4, 128)[..., ::2]}, ValueError),
        ({"q": torch.zeros(2, 4, 64, dtype=torch.float16)}, TypeError),
        ({"q": torch.zeros(2, 4, 64, device="meta")}, ValueError),
        ({"kv_pool": torch.zeros(9, 3, 2, 2, 16, 64)}, ValueError),
        ({"kv_pool": torch.zeros(9, 1, 2, 1, 16, 64)}, ValueError),
        ({"kv_pool": torch.zeros(9, 3, 2, 1, 16, 128)[..., ::2]}, ValueError),
        ({"block_tables": torch.zeros(3, 7, dtype=torch.int32)}, ValueError),
        ({"block_tables": torch.zeros(2, 7, dtype=torch.int64)}, TypeError),
    ],
)
def test_what_does_not_fit_is_refused(
    change: dict[str, torch.Tensor], error: type[Exception]
) -> None:
    inputs = decode_inputs(SPLIT, torch.float32, "cpu")
    plan = DecodePlan.allocate(inputs.context_lens, 4, inputs.kv_pool, TILE)
    changed = dataclasses.replace(inputs, **change)
    output = torch.zeros_like(inputs.q)
    with pytest.raises(error):
        paged_decode(
            changed.q, changed.kv_pool, LAYER, changed.block_tables, plan, SPLIT.scale, output
        )
