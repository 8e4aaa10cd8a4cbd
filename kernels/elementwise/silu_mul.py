"""SiLU of the gate times the up projection, in float32 inside.

A program takes a run of one row's columns, so that rows of any width fill the GPU.
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

MAX_COLUMNS = 1024
"""of one program"""
LAUNCHES = KnownLaunches()


@triton.jit
def silu_mul_kernel(
    gate_up_ptr,
    output_ptr,
    gate_up_stride,
    output_stride,
    WIDTH: tl.constexpr,
    TILE_WIDTH: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Grid (rows x column tiles,). Strides are from row to row, in elements."""
    TILES: tl.constexpr = (WIDTH + TILE_WIDTH - 1) // TILE_WIDTH
    row = (tl.program_id(0) // TILES).to(tl.int64)
    columns = tl.program_id(0) % TILES * TILE_WIDTH + tl.arange(0, TILE_WIDTH)
    real = columns < WIDTH
    follow(OVERLAP)
    gate_at = gate_up_ptr + row * gate_up_stride + columns
    gate = tl.load(gate_at, real, other=0.0).to(tl.float32)
    up = tl.load(gate_at + WIDTH, real, other=0.0).to(tl.float32)
    result = gate / (1 + tl.exp(-gate)) * up
    place = output_ptr + row * output_stride + columns
    tl.store(place, result.to(output_ptr.dtype.element_ty), real)


def silu_mul(gate_up: torch.Tensor, output: torch.Tensor, *, overlap: bool = False) -> None:
    """Write silu(gate) * up of rows [T, 2 I] that hold gate, then up, into `output` [T, I].

    Rows may be strided, elements of a row must be contiguous. `overlap` (sm_90 and later) lets the
    launch begin while the kernel before still runs. ValueError or TypeError for what does not fit.
    """
    LAUNCHES.find(_launch, (gate_up, output), overlap)(gate_up, output)


def silu_mul_tile(width: int) -> tuple[int, int]:
    """(columns, warps) of one program."""
    columns = min(MAX_COLUMNS, next_power_of_two(width))
    return columns, max(1, columns // 256)


def _launch(gate_up: torch.Tensor, output: torch.Tensor, overlap: bool) -> Launch:
    _check(gate_up, output)
    num_rows, width = output.shape
    tile_width, num_warps = silu_mul_tile(width)
    return Launch(
        silu_mul_kernel,
        grid=(num_rows * ceil_div(width, tile_width),),
        numbers=(gate_up.stride(0), output.stride(0)),
        constants={"WIDTH": width, "TILE_WIDTH": tile_width, "OVERLAP": overlap},
        options={"num_warps": num_warps, **overlap_options(overlap)},
    )


def _check(gate_up: torch.Tensor, output: torch.Tensor) -> None:
    if gate_up.dim() != 2 or output.dim() != 2 or output.shape[1] == 0:
        raise ValueError(f"gate_up {tuple(gate_up.shape)}, output {tuple(output.shape)}")
    if gate_up.shape != (output.shape[0], 2 * output.shape[1]):
        raise ValueError(f"gate_up {tuple(gate_up.shape)} for output {tuple(output.shape)}")
    if gate_up.stride(1) != 1 or output.stride(1) != 1:
        raise ValueError("elements of a row must be contiguous")
    if gate_up.dtype != output.dtype or not output.is_floating_point():
        raise TypeError(f"gate_up {gate_up.dtype}, output {output.dtype}")
    check_same_device(gate_up, output)
    if isinstance(silu_mul_kernel, InterpretedFunction):
        check_interpretable(gate_up)
