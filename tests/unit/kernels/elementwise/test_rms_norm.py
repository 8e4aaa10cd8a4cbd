"""rms_norm against its torch reference; interpreted where there is no GPU."""

import pytest
import torch
from triton.runtime.interpreter import InterpretedFunction

from kernels.elementwise import reference
from kernels.elementwise.rms_norm import rms_norm, rms_norm_kernel, rms_norm_tile
from tests.support.cases.elementwise_cases import EPS, all_close, make_rows

INTERPRETED = isinstance(rms_norm_kernel, InterpretedFunction)
DEVICE = "cpu" if INTERPRETED else "cuda"
DTYPES = (torch.float32, torch.float16)
SHAPES = ((1, 64), (35, 16), (5, 100), (3, 1024), (2, 2560), (1, 16384), (17, 1))
"""(rows, width): rows that fill a program's tile in part, widths that do"""


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("strided", [False, True], ids=["packed", "strided"])
@pytest.mark.parametrize(("num_rows", "width"), SHAPES)
def test_norm_equals_the_reference(
    num_rows: int, width: int, strided: bool, dtype: torch.dtype
) -> None:
    x = make_rows(num_rows, width, dtype, DEVICE, strided=strided)
    weight = make_rows(1, width, dtype, DEVICE)[0]
    before = x.clone()
    output, expected = torch.empty(2, num_rows, width, dtype=dtype, device=DEVICE)
    rms_norm(x, weight, EPS, output)
    reference.rms_norm(x, weight, EPS, expected)
    assert all_close(output, expected)
    assert torch.equal(x, before)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_norm_may_replace_its_input(dtype: torch.dtype) -> None:
    x = make_rows(6, 100, dtype, DEVICE)
    weight = make_rows(1, 100, dtype, DEVICE)[0]
    expected = torch.empty_like(x)
    reference.rms_norm(x, weight, EPS, expected)
    rms_norm(x, weight, EPS, x)
    assert all_close(x, expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_wrong_element_is_found(dtype: torch.dtype) -> None:
    x = make_rows(5, 100, dtype, DEVICE)
    weight = make_rows(1, 100, dtype, DEVICE)[0]
    output, expected = torch.empty(2, 5, 100, dtype=dtype, device=DEVICE)
    reference.rms_norm(x, weight, EPS, expected)
    x[-1, -1] *= 1.01
    rms_norm(x, weight, EPS, output)
    assert not all_close(output, expected)


def test_a_row_of_zeros_stays_zero_and_eps_counts() -> None:
    x = torch.zeros(3, 64, device=DEVICE)
    x[1:] = 1e-3
    output = torch.empty_like(x)
    rms_norm(x, torch.ones(64, device=DEVICE), 3e-6, output)
    assert not output[0].any()
    assert all_close(output[1:], torch.full_like(output[1:], 0.5))


def test_nothing_happens_without_rows() -> None:
    x = torch.zeros(0, 64, device=DEVICE)
    rms_norm(x, torch.ones(64, device=DEVICE), EPS, x)


def test_bfloat16_is_refused_by_the_interpreter() -> None:
    x = torch.ones(1, 64, dtype=torch.bfloat16, device=DEVICE)
    if INTERPRETED:
        with pytest.raises(TypeError, match="bfloat16"):
            rms_norm(x, x[0], EPS, x)


@pytest.mark.parametrize("width", [1, 64, 1000, 1024, 4096, 5120, 16384, 32768])
def test_a_tile_holds_whole_rows(width: int) -> None:
    rows, columns, num_warps = rms_norm_tile(width)
    assert columns >= width
    assert rows * columns <= max(1024, 2 * width)
    assert 1 <= num_warps <= 16


X = torch.zeros(2, 64)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"x": torch.zeros(2, 3, 64)}, ValueError),
        ({"x": torch.zeros(2, 128)[:, ::2]}, ValueError),
        ({"x": torch.zeros(2, 65536)}, ValueError),
        ({"x": X.half()}, TypeError),
        ({"x": X.to("meta")}, ValueError),
        ({"output": X.half()}, TypeError),
        ({"weight": torch.zeros(32)}, ValueError),
        ({"weight": torch.zeros(128)[::2]}, ValueError),
        ({"output": torch.zeros(2, 32)}, ValueError),
        (
            dict.fromkeys(("x", "output"), X.int()) | {"weight": X[0].int()},
            TypeError,
        ),
    ],
)
def test_what_does_not_fit_is_refused(
    change: dict[str, torch.Tensor], error: type[Exception]
) -> None:
    tensors = {"x": X, "weight": X[0], "output": X} | change
    with pytest.raises(error):
        rms_norm(tensors["x"], tensors["weight"], EPS, tensors["output"])
