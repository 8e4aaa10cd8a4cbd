"""Root mean square norm over the last dimension.

A program holds its rows whole, so each element is read and written once. Sums are in float32; the
normed row is rounded to its dtype before the weight multiplies it, as
shared/engine/layers/matrices.py does.
"""

import torch
import triton
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction

from kernels.launching.known_launches import KnownLaunches
from kernels.launching.launch import (
    ceil_div,
    check_interpretable,
    check_same_device,
    next_power_of_two,
    overlap_options,
)
from kernels.launching.overlap import follow
from kernels.launching.repeated_launch import Launch

MIN_ELEMENTS = 1024
"""of one program: as many narrow rows as make these"""
MAX_WIDTH = 32768
"""of a row, which lies in one program's registers"""
LAUNCHES = KnownLaunches()


@triton.jit(do_not_specialize=["num_rows"])
def rms_norm_kernel(
    x_ptr,
    weight_ptr,
    output_ptr,
    eps,
    num_rows,
    x_stride,
    output_stride,
    WIDTH: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_WIDTH: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Grid (row tiles,). Strides are from row to row, in elements."""
    rows = tl.program_id(0) * TILE_ROWS + tl.arange(0, TILE_ROWS)[:, None]
    columns = tl.arange(0, TILE_WIDTH)[None, :]
    real = columns < WIDTH
    inside = (rows < num_rows) & real
    rows = rows.to(tl.int64)
    weight = tl.load(weight_ptr + columns, real, other=0.0).to(tl.float32)
    follow(OVERLAP)
    x = tl.load(x_ptr + rows * x_stride + columns, inside, other=0.0)
    wide = x.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 1) / WIDTH + eps)
    normed = (wide * scale[:, None]).to(x.dtype).to(tl.float32)
    result = (weight * normed).to(x.dtype)
    tl.store(output_ptr + rows * output_stride + columns, result, inside)


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    output: torch.Tensor,
    *,
    overlap: bool = False,
) -> None:
    """Write the norm of x [T, W] times weight [W] into `output` [T, W], which may be x.

    Rows may be strided, elements of a row must be contiguous. With `overlap` (sm_90 and later) the
    weight is read while the kernel before still runs. ValueError or TypeError for what does not
    fit.
    """
    tensors = (x, weight, output)
    LAUNCHES.find(_launch, tensors, eps, overlap)(*tensors)


def rms_norm_tile(width: int) -> tuple[int, int, int]:
    """(rows, elements of a row, warps) of one program; the first two are powers of two."""
    padded = next_power_of_two(width)
    rows = max(1, MIN_ELEMENTS // padded)
    return rows, padded, min(16, max(4, rows * padded // 512))


def _launch(
    x: torch.Tensor, weight: torch.Tensor, output: torch.Tensor, eps: float, overlap: bool
) -> Launch:
    _check(weight, x, output)
    num_rows, width = x.shape
    tile_rows, tile_width, num_warps = rms_norm_tile(width)
    return Launch(
        rms_norm_kernel,
        grid=(ceil_div(num_rows, tile_rows),),
        numbers=(eps, num_rows, x.stride(0), output.stride(0)),
        constants={
            "WIDTH": width,
            "TILE_ROWS": tile_rows,
            "TILE_WIDTH": tile_width,
            "OVERLAP": overlap,
        },
        options={"num_warps": num_warps, **overlap_options(overlap)},
    )


def _check(weight: torch.Tensor, *rows: torch.Tensor) -> None:
    x = rows[0]
    if x.dim() != 2 or not 0 < x.shape[1] <= MAX_WIDTH:
        raise ValueError(f"x {tuple(x.shape)} is not [rows, up to {MAX_WIDTH}]")
    if weight.shape != x.shape[1:] or not weight.is_contiguous():
        raise ValueError(f"weight {tuple(weight.shape)} for rows of {x.shape[1]}")
    for tensor in rows:
        if tensor.shape != x.shape:
            raise ValueError(f"{tuple(tensor.shape)} does not fit x {tuple(x.shape)}")
        if tensor.stride(1) != 1:
            raise ValueError("elements of a row must be contiguous")
        if tensor.dtype != weight.dtype:
            raise TypeError(f"{tensor.dtype} and weight {weight.dtype} must be one dtype")
    if not weight.is_floating_point():
        raise TypeError(f"cannot norm {weight.dtype}")
    check_same_device(weight, *rows)
    if isinstance(rms_norm_kernel, InterpretedFunction):
        check_interpretable(x)
