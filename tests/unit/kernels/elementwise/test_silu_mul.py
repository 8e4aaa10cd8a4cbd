"""silu_mul against its torch reference; interpreted where there is no GPU."""

import pytest
import torch
from triton.runtime.interpreter import InterpretedFunction

from kernels.elementwise import reference
from kernels.elementwise.silu_mul import silu_mul, silu_mul_kernel
from tests.support.cases.elementwise_cases import all_close, make_rows

INTERPRETED = isinstance(silu_mul_kernel, InterpretedFunction)
DEVICE = "cpu" if INTERPRETED else "cuda"
DTYPES = (torch.float32, torch.float16)
SHAPES = ((1, 1), (1, 1024), (5, 100), (3, 1025), (2, 4864))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("strided", [False, True], ids=["packed", "strided"])
@pytest.mark.parametrize(("num_rows", "width"), SHAPES)
def test_output_equals_the_references(
    num_rows: int, width: int, strided: bool, dtype: torch.dtype
) -> None:
    gate_up = make_rows(num_rows, 2 * width, dtype, DEVICE, strided=strided) * 3
    output = make_rows(num_rows, width, dtype, DEVICE, strided=strided)
    expected = torch.empty_like(output)
    silu_mul(gate_up, output)
    reference.silu_mul(gate_up, expected)
    assert all_close(output, expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_wrong_element_is_found(dtype: torch.dtype) -> None:
    gate_up = make_rows(5, 200, dtype, DEVICE)
    output, expected = torch.empty(2, 5, 100, dtype=dtype, device=DEVICE)
    reference.silu_mul(gate_up, expected)
    gate_up[-1, -1] *= 1.01
    silu_mul(gate_up, output)
    assert not all_close(output, expected)


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")
def test_gates_far_from_zero() -> None:
    gate = torch.tensor([-1e4, -100.0, 0.0, 100.0, 1e4], device=DEVICE)
    output = torch.empty(1, 5, device=DEVICE)
    silu_mul(torch.cat((gate, torch.full_like(gate, 2.0)))[None], output)
    assert all_close(output, torch.tensor([[0, 0, 0, 200.0, 2e4]], device=DEVICE))


def test_nothing_happens_without_rows() -> None:
    silu_mul(torch.zeros(0, 64, device=DEVICE), torch.zeros(0, 32, device=DEVICE))


def test_bfloat16_is_refused_by_the_interpreter() -> None:
    gate_up = torch.ones(1, 64, dtype=torch.bfloat16, device=DEVICE)
    if INTERPRETED:
        with pytest.raises(TypeError, match="bfloat16"):
            silu_mul(gate_up, gate_up[:, :32].clone())


@pytest.mark.parametrize(
    ("gate_up", "output", "error"),
    [
        (torch.zeros(2, 60), torch.zeros(2, 32), ValueError),
        (torch.zeros(3, 64), torch.zeros(2, 32), ValueError),
        (torch.zeros(64), torch.zeros(32), ValueError),
        (torch.zeros(2, 0), torch.zeros(2, 0), ValueError),
        (torch.zeros(2, 128)[:, ::2], torch.zeros(2, 32), ValueError),
        (torch.zeros(2, 64), torch.zeros(2, 64)[:, ::2], ValueError),
        (torch.zeros(2, 64), torch.zeros(2, 32).half(), TypeError),
        (torch.zeros(2, 64).int(), torch.zeros(2, 32).int(), TypeError),
        (torch.zeros(2, 64), torch.zeros(2, 32, device="meta"), ValueError),
    ],
)
def test_what_does_not_fit_is_refused(
    gate_up: torch.Tensor, output: torch.Tensor, error: type[Exception]
) -> None:
    with pytest.raises(error):
        silu_mul(gate_up, output)
