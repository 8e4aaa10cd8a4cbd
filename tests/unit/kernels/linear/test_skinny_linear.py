"""skinny_linear against its torch reference; interpreted where there is no GPU."""

import dataclasses
from typing import Any

import pytest
import torch
from triton.runtime.interpreter import InterpretedFunction

from kernels.linear.skinny_linear import Norm, skinny_linear, skinny_linear_kernel
from kernels.linear.skinny_tiles import SkinnyTile, SkinnyWorkspace
from tests.support.cases.linear_cases import (
    MAX_ERRORS,
    LinearCase,
    LinearInputs,
    expected,
    linear_inputs,
    multiply,
    relative_error,
)

pytestmark = pytest.mark.filterwarnings(  # Triton's interpreter, for a loop over a loaded number
    "ignore:Conversion of an array with ndim:DeprecationWarning",
)
INTERPRETED = isinstance(skinny_linear_kernel, InterpretedFunction)
DEVICE = "cpu" if INTERPRETED else "cuda"
TILE = SkinnyTile(
    num_columns=64, num_inputs=32, num_warps=4, num_stages=2, num_programs=5, num_rows=16
)
CASES = (
    LinearCase(1, 64, 32),
    LinearCase(16, 100, 200),
    LinearCase(3, 192, 160, bias=True),
    LinearCase(5, 130, 96, norm=True, strided=True),
    LinearCase(16, 40, 130, norm=True, bias=True, residual=True),
    LinearCase(2, 96, 96, gated=True),
    LinearCase(13, 70, 104, gated=True, norm=True, bias=True, residual=True, strided=True),
    LinearCase(1, 17, 640, residual=True),
)
SPLIT = LinearCase(3, 128, 160, norm=True, bias=True, residual=True)
"""both its tiles are shared by several programs"""


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("num_programs", [1, 5, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["fp32", "fp16"])
@pytest.mark.parametrize("case", CASES)
def test_output_equals_the_references(
    case: LinearCase, dtype: torch.dtype, num_programs: int
) -> None:
    inputs = linear_inputs(case, dtype, DEVICE)
    tile = dataclasses.replace(TILE, num_programs=num_programs)
    assert relative_error(multiply(case, inputs, tile), expected(case, inputs)) <= MAX_ERRORS[dtype]


def test_residual_in_place() -> None:
    inputs = linear_inputs(SPLIT, torch.float32, DEVICE)
    wanted = expected(SPLIT, inputs)
    assert inputs.residual is not None
    in_place = dataclasses.replace(inputs, output=inputs.residual)
    assert relative_error(multiply(SPLIT, in_place, TILE), wanted) <= MAX_ERRORS[torch.float32]


def test_nothing_outside_the_output_is_written() -> None:
    case = LinearCase(3, 100, 96, strided=True)
    inputs = linear_inputs(case, torch.float32, DEVICE)
    whole = inputs.output._base
    assert whole is not None
    whole.fill_(7)
    multiply(case, inputs, TILE)
    assert (whole[:, :8] == 7).all() and (whole[:, -8:] == 7).all()


@pytest.mark.parametrize("case", [SPLIT, LinearCase(16, 70, 200, gated=True, norm=True)])
def test_a_row_depends_on_itself_only(case: LinearCase) -> None:
    """Equal bits whatever the other rows hold, and again for equal inputs."""
    inputs = linear_inputs(case, torch.float16, DEVICE)
    first = multiply(case, inputs, TILE).clone()
    assert torch.equal(multiply(case, inputs, TILE), first)
    inputs.x[1:] = inputs.x[1:].flip(0) * 2
    if inputs.residual is not None:
        inputs.residual[1:] += 1
    again = multiply(case, inputs, TILE)
    assert torch.equal(again[0], first[0])
    assert not torch.equal(again[1:], first[1:])


def _one_weight(inputs: LinearInputs) -> None:
    inputs.weight[77, 130] += 8


def _one_input(inputs: LinearInputs) -> None:
    inputs.x[2, 159] += 8


def _one_bias(inputs: LinearInputs) -> None:
    assert inputs.bias is not None
    inputs.bias[100] += 2


def _one_residual(inputs: LinearInputs) -> None:
    assert inputs.residual is not None
    inputs.residual[0, 127] += 2


def _one_norm_weight(inputs: LinearInputs) -> None:
    assert inputs.norm is not None
    inputs.norm.weight[3] += 1


def _two_columns_swapped(inputs: LinearInputs) -> None:
    inputs.weight[:2] = inputs.weight[[1, 0]].clone()


@pytest.mark.parametrize(
    "mutate",
    [
        _one_weight,
        _one_input,
        _one_bias,
        _one_residual,
        _one_norm_weight,
        _two_columns_swapped,
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["fp32", "fp16"])
def test_a_wrong_answer_is_found(mutate: Any, dtype: torch.dtype) -> None:
    inputs = linear_inputs(SPLIT, dtype, DEVICE)
    wanted = expected(SPLIT, inputs)
    mutate(inputs)
    assert relative_error(multiply(SPLIT, inputs, TILE), wanted) > MAX_ERRORS[dtype]


def test_a_wrong_eps_or_a_gate_for_up_is_found() -> None:
    case = LinearCase(5, 40, 64, gated=True, norm=True)
    inputs = linear_inputs(case, torch.float32, DEVICE)
    wanted = expected(case, inputs)
    assert inputs.norm is not None
    other = dataclasses.replace(inputs, norm=Norm(inputs.norm.weight, 1.0))
    assert relative_error(multiply(case, other, TILE), wanted) > MAX_ERRORS[torch.float32]
    inputs.weight[:] = inputs.weight.roll(40, 0)
    assert relative_error(multiply(case, inputs, TILE), wanted) > MAX_ERRORS[torch.float32]


def test_one_workspace_serves_all_shapes() -> None:
    tile = dataclasses.replace(TILE, num_rows=32)
    workspace = SkinnyWorkspace.allocate([tile, None, TILE], DEVICE)
    for case in CASES:
        inputs = linear_inputs(case, torch.float32, DEVICE)
        skinny_linear(
            inputs.x,
            inputs.weight,
            inputs.output,
            workspace,
            TILE,
            bias=inputs.bias,
            norm=inputs.norm,
            residual=inputs.residual,
            gated=case.gated,
        )
        assert relative_error(inputs.output, expected(case, inputs)) <= 2e-6


def test_bfloat16_is_refused_by_the_interpreter() -> None:
    inputs = linear_inputs(CASES[0], torch.bfloat16, DEVICE)
    if INTERPRETED:
        with pytest.raises(TypeError, match="bfloat16"):
            multiply(CASES[0], inputs, TILE)
    else:
        error = relative_error(multiply(CASES[0], inputs, TILE), expected(CASES[0], inputs))
        assert error <= MAX_ERRORS[torch.bfloat16]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"x": torch.zeros(3, 96)}, ValueError),
        ({"x": torch.zeros(3, 320)[:, ::2]}, ValueError),
        ({"x": torch.zeros(2, 160)}, ValueError),
        ({"x": torch.zeros(3, 160, dtype=torch.float16)}, TypeError),
        ({"x": torch.zeros(3, 160, device="meta")}, ValueError),
        ({"weight": torch.zeros(64, 160)}, ValueError),
        ({"weight": torch.zeros(160, 128).T}, ValueError),
        ({"bias": torch.zeros(64)}, ValueError),
        ({"norm": Norm(torch.zeros(128), 1e-5)}, ValueError),
        ({"residual": torch.zeros(3, 64)}, ValueError),
        ({"residual": torch.zeros(128, 3).T}, ValueError),
        ({"output": torch.zeros(3, 128, dtype=torch.float16)}, TypeError),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], error: type[Exception]) -> None:
    inputs = dataclasses.replace(linear_inputs(SPLIT, torch.float32, "cpu"), **change)
    with pytest.raises(error):
        skinny_linear(
            inputs.x,
            inputs.weight,
            inputs.output,
            SkinnyWorkspace.allocate([TILE], "cpu"),
            TILE,
            bias=inputs.bias,
            norm=inputs.norm,
            residual=inputs.residual,
        )


def test_too_many_rows_and_a_small_workspace_are_refused() -> None:
    case = LinearCase(17, 64, 64)
    inputs = linear_inputs(case, torch.float32, "cpu")
    small = SkinnyWorkspace.allocate([TILE], "cpu")
    with pytest.raises(ValueError, match="17 rows"):
        skinny_linear(inputs.x, inputs.weight, inputs.output, small, TILE)
    with pytest.raises(ValueError, match="allocated"):
        wide = dataclasses.replace(TILE, num_rows=32)
        skinny_linear(inputs.x, inputs.weight, inputs.output, small, wide)


def test_the_output_must_not_be_x() -> None:
    x = torch.zeros(2, 64)
    with pytest.raises(ValueError, match="must not be x"):
        skinny_linear(x, torch.zeros(64, 64), x, SkinnyWorkspace.allocate([TILE], "cpu"), TILE)
