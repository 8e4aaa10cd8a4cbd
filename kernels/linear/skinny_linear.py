"""y = x W^T for a few rows of x, with what stands before and after it in a decode step.

Weights dominate: the time is that of reading them once. There are two forms. kernels/
skinny_hopper.py is the fast one for Hopper; the one here works on every GPU. Its unit of work is
one tile of weights, `num_columns` rows of W by `num_inputs` of its columns. All units stand in one
line, tile of columns after tile of columns, and each program of a fixed grid takes an equal run of
it, so no multiprocessor waits for a last wave. A run that holds only part of a tile's units leaves
its sum (kernels/linear/skinny_parts.py) and the last program of that tile to finish adds the sums
up, always in the same order.

In both forms a row's bits depend on no other row of the batch, and equal inputs give equal bits.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction

from kernels.launching.launch import ceil_div, check_interpretable, check_same_device
from kernels.launching.overlap import follow
from kernels.launching.repeated_launch import Launch
from kernels.linear.skinny_hopper import hopper_descriptors, hopper_launch
from kernels.linear.skinny_parts import add_parts, arrive, leave_part
from kernels.linear.skinny_tiles import Fused, SkinnyTile, SkinnyWorkspace


class Norm(NamedTuple):
    """Root mean square norm of x's rows before the product."""

    weight: torch.Tensor
    """[inputs]"""
    eps: float


@triton.jit(do_not_specialize=["num_rows", "run"])
def skinny_linear_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    norm_ptr,
    residual_ptr,
    output_ptr,
    part_ptr,
    square_ptr,
    arrival_ptr,
    num_rows,
    run,
    eps,
    x_stride,
    residual_stride,
    output_stride,
    COLUMNS: tl.constexpr,
    INPUTS: tl.constexpr,
    GATED: tl.constexpr,
    BIAS: tl.constexpr,
    NORM: tl.constexpr,
    RESIDUAL: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
    TILE_INPUTS: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    PRECISION: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Grid (programs,). COLUMNS: of the output; W has twice as many rows if GATED. `run` units
    each. Strides are in elements, W is contiguous."""
    STEPS: tl.constexpr = (INPUTS + TILE_INPUTS - 1) // TILE_INPUTS
    WIDTH: tl.constexpr = TILE_COLUMNS // 2 if GATED else TILE_COLUMNS
    TILES: tl.constexpr = (COLUMNS + WIDTH - 1) // WIDTH
    program = tl.program_id(0)
    unit = program * run
    count = tl.minimum(run, TILES * STEPS - unit)
    tile = unit // STEPS
    step = unit % STEPS
    follow(OVERLAP)

    while count > 0:
        share = tl.minimum(count, STEPS - step)
        product, squares = multiply_tiles(
            x_ptr,
            weight_ptr,
            norm_ptr,
            tile,
            step * TILE_INPUTS,
            share,
            num_rows,
            x_stride,
            COLUMNS,
            INPUTS,
            GATED,
            NORM,
            TILE_COLUMNS,
            TILE_INPUTS,
            TILE_ROWS,
            PRECISION,
        )
        complete = share == STEPS
        if share < STEPS:
            begin = tile * STEPS
            slot = 2 * program + (begin > program * run).to(tl.int32)
            leave_part(part_ptr, square_ptr, slot, product, squares, NORM)
            first = begin // run
            num_parts = (begin + STEPS - 1) // run - first + 1
            complete = arrive(arrival_ptr + first, num_parts)
            if complete:
                product, squares = add_parts(
                    part_ptr,
                    square_ptr,
                    begin,
                    num_parts,
                    run,
                    TILE_COLUMNS,
                    TILE_ROWS,
                    NORM,
                )
        if complete:
            if NORM:
                product = product * tl.rsqrt(squares / INPUTS + eps)[None, :]
            store_tile(
                product,
                bias_ptr,
                residual_ptr,
                output_ptr,
                tile,
                num_rows,
                residual_stride,
                output_stride,
                COLUMNS,
                GATED,
                BIAS,
                RESIDUAL,
            )
        count -= share
        tile += 1
        step = 0


@triton.jit
def multiply_tiles(
    x_ptr,
    weight_ptr,
    norm_ptr,
    tile,
    start,
    count,
    num_rows,
    x_stride,
    COLUMNS: tl.constexpr,
    INPUTS: tl.constexpr,
    GATED: tl.constexpr,
    NORM: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
    TILE_INPUTS: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Product [TILE_COLUMNS, TILE_ROWS] over `count` units of a tile from column `start` of W on,
    and the sums of squares of x there."""
    rows = tl.arange(0, TILE_ROWS)
    inputs = start + tl.arange(0, TILE_INPUTS)
    present = (rows < num_rows)[:, None]
    x_at = x_ptr + rows[:, None] * x_stride + inputs[None, :]
    row_at = weight_rows(tile, COLUMNS, GATED, TILE_COLUMNS) * INPUTS
    weight_at = weight_ptr + row_at[:, None] + inputs[None, :]
    product = tl.zeros([TILE_COLUMNS, TILE_ROWS], tl.float32)
    squares = tl.zeros([TILE_ROWS, TILE_INPUTS], tl.float32)
    for _ in range(count):
        if INPUTS % TILE_INPUTS == 0:
            weights = tl.load(weight_at, eviction_policy="evict_first")
            x = tl.load(x_at, present, other=0.0)
        else:
            real = (inputs < INPUTS)[None, :]
            weights = tl.load(weight_at, real, other=0.0, eviction_policy="evict_first")
            x = tl.load(x_at, present & real, other=0.0)
        if NORM:
            scale = tl.load(norm_ptr + inputs, inputs < INPUTS, other=0.0)
            wide = x.to(tl.float32)
            # Summed over inputs after the loop: no exchange between threads per unit.
            squares += wide * wide
            x = (wide * scale.to(tl.float32)[None, :]).to(x.dtype)
        product = tl.dot(weights, tl.trans(x), product, input_precision=PRECISION)
        inputs += TILE_INPUTS
        x_at += TILE_INPUTS
        weight_at += TILE_INPUTS
    return product, tl.sum(squares, 1)


@triton.jit
def weight_rows(tile, COLUMNS: tl.constexpr, GATED: tl.constexpr, TILE_COLUMNS: tl.constexpr):
    """Rows of W that a tile multiplies. Past the last it takes the last again."""
    index = tl.arange(0, TILE_COLUMNS)
    if GATED:
        WIDTH: tl.constexpr = TILE_COLUMNS // 2
        column = tl.minimum(tile * WIDTH + index % WIDTH, COLUMNS - 1)
        return (column + index // WIDTH * COLUMNS).to(tl.int64)
    return tl.minimum(tile * TILE_COLUMNS + index, COLUMNS - 1).to(tl.int64)


@triton.jit
def store_tile(
    product,
    bias_ptr,
    residual_ptr,
    output_ptr,
    tile,
    num_rows,
    residual_stride,
    output_stride,
    COLUMNS: tl.constexpr,
    GATED: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
):
    """Bias, gate and residual of a whole product [TILE_COLUMNS, TILE_ROWS]."""
    TILE_COLUMNS: tl.constexpr = product.shape[0]
    rows = tl.arange(0, product.shape[1])
    if BIAS:
        at = weight_rows(tile, COLUMNS, GATED, TILE_COLUMNS)
        product += tl.load(bias_ptr + at).to(tl.float32)[:, None]
    if GATED:
        WIDTH: tl.constexpr = TILE_COLUMNS // 2
        pair = tl.permute(tl.reshape(product, [2, WIDTH, product.shape[1]]), [1, 2, 0])
        gate, up = tl.split(pair)
        result = gate / (1.0 + tl.exp(-gate)) * up
        columns = tile * WIDTH + tl.arange(0, WIDTH)
    else:
        result = product
        columns = tile * TILE_COLUMNS + tl.arange(0, TILE_COLUMNS)
    inside = (columns < COLUMNS)[:, None] & (rows < num_rows)[None, :]
    if RESIDUAL:
        place = residual_ptr + rows[None, :] * residual_stride + columns[:, None]
        result += tl.load(place, inside, other=0.0).to(tl.float32)
    place = output_ptr + rows[None, :] * output_stride + columns[:, None]
    tl.store(place, result.to(output_ptr.dtype.element_ty), inside)


def skinny_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    output: torch.Tensor,
    workspace: SkinnyWorkspace,
    tile: SkinnyTile,
    *,
    bias: torch.Tensor | None = None,
    norm: Norm | None = None,
    residual: torch.Tensor | None = None,
    gated: bool = False,
) -> None:
    """Write x W^T of x [M, inputs] and weight [columns, inputs] into `output` [M, columns].

    With `norm` x is normalised first, in float16 its product with the norm weight must be finite.
    With `gated` W is [2 * columns, inputs], gate rows and then up rows, and the output is
    silu(gate) * up. `bias` is one number per row of W. `residual` [M, columns] is added last and
    may be the output itself. Everything is summed in float32 and rounded once. x, residual and
    output may have any row stride. Nothing is allocated and the host waits for nothing. ValueError
    or TypeError for what does not fit.
    """
    if output.data_ptr() == x.data_ptr() and output.numel() and not output.is_meta:
        raise ValueError("the output must not be x: programs read x while others write")
    options = (
        weight if bias is None else bias,
        weight if norm is None else norm.weight,
        output if residual is None else residual,
    )
    tensors = (x, weight, *options, output)
    eps = None if norm is None else norm.eps
    fused = Fused(bias is not None, eps, residual is not None, gated)
    launch = workspace.launches.find(_launch, tensors, tile, fused)
    workspace.check_fits(tile)
    if tile.hopper:
        launch(*options, output, descriptors=hopper_descriptors(x, weight, tile, gated=gated))
    else:
        launch(*tensors, workspace.parts, workspace.squares, workspace.arrivals)


def _launch(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    norm: torch.Tensor,
    residual: torch.Tensor,
    output: torch.Tensor,
    tile: SkinnyTile,
    fused: Fused,
) -> Launch:
    """What there is none of is another tensor."""
    _check(
        x,
        weight,
        output,
        bias if fused.bias else None,
        None if fused.eps is None else norm,
        residual if fused.residual else None,
        fused.gated,
    )
    if x.shape[0] > tile.num_rows:
        raise ValueError(f"{x.shape[0]} rows for {tile}")
    form = hopper_launch if tile.hopper else _portable_launch
    return form(x, weight, residual, output, tile, fused)


def _portable_launch(
    x: torch.Tensor,
    weight: torch.Tensor,
    residual: torch.Tensor,
    output: torch.Tensor,
    tile: SkinnyTile,
    fused: Fused,
) -> Launch:
    num_tiles = ceil_div(output.shape[1], tile.num_columns // (1 + fused.gated))
    num_units = num_tiles * ceil_div(weight.shape[1], tile.num_inputs)
    run = ceil_div(num_units, tile.num_programs)
    return Launch(
        skinny_linear_kernel,
        grid=(ceil_div(num_units, run),),
        numbers=(
            x.shape[0],
            run,
            fused.eps or 0.0,
            x.stride(0),
            residual.stride(0) if fused.residual else 0,
            output.stride(0),
        ),
        constants={
            "COLUMNS": output.shape[1],
            "INPUTS": weight.shape[1],
            "GATED": fused.gated,
            "BIAS": fused.bias,
            "NORM": fused.eps is not None,
            "RESIDUAL": fused.residual,
            "TILE_COLUMNS": tile.num_columns,
            "TILE_INPUTS": tile.num_inputs,
            "TILE_ROWS": tile.num_rows,
            "PRECISION": "ieee" if x.dtype is torch.float32 else "tf32",
            "OVERLAP": tile.overlap,
        },
        options=tile.launch_options,
    )


def _check(
    x: torch.Tensor,
    weight: torch.Tensor,
    output: torch.Tensor,
    bias: torch.Tensor | None,
    norm: torch.Tensor | None,
    residual: torch.Tensor | None,
    gated: bool,
) -> None:
    if x.dim() != 2 or weight.dim() != 2 or output.dim() != 2 or x.shape[0] == 0:
        raise ValueError(f"x {tuple(x.shape)}, weight {tuple(weight.shape)} are no matrices")
    rows, inputs = x.shape
    columns = output.shape[1]
    if weight.shape != (columns * (1 + gated), inputs) or output.shape[0] != rows:
        raise ValueError(
            f"output {tuple(output.shape)} of x {tuple(x.shape)} and weight {tuple(weight.shape)}"
        )
    if x.stride(1) != 1 or output.stride(1) != 1 or not weight.is_contiguous():
        raise ValueError("rows of x and output, and all of the weight, must be contiguous")
    given = [x, weight, output, *_checked(x, weight, output, bias, norm, residual)]
    if len({tensor.dtype for tensor in given}) != 1:
        raise TypeError(f"tensors are {sorted({str(item.dtype) for item in given})}, must be one")
    check_same_device(*given)
    if isinstance(skinny_linear_kernel, InterpretedFunction):
        check_interpretable(x)


def _checked(
    x: torch.Tensor,
    weight: torch.Tensor,
    output: torch.Tensor,
    bias: torch.Tensor | None,
    norm: torch.Tensor | None,
    residual: torch.Tensor | None,
) -> list[torch.Tensor]:
    """Those of the options that are given."""
    given = []
    if bias is not None:
        if bias.shape != weight.shape[:1] or not bias.is_contiguous():
            raise ValueError(f"bias {tuple(bias.shape)} for {weight.shape[0]} rows of W")
        given.append(bias)
    if norm is not None:
        if norm.shape != x.shape[1:] or not norm.is_contiguous():
            raise ValueError(f"norm weight {tuple(norm.shape)} for {x.shape[1]} inputs")
        given.append(norm)
    if residual is not None:
        if residual.shape != output.shape or residual.stride(1) != 1:
            raise ValueError(f"residual {tuple(residual.shape)} for output {tuple(output.shape)}")
        given.append(residual)
    return given
