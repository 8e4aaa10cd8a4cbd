"""The form of skinny_linear for Hopper, for 16-bit types.

A tile is all inputs of so many columns that each multiprocessor takes one tile, or few: nothing is
split, nothing added up afterwards. Three groups of warps work side by side. One warp copies
weights and x to a ring in shared memory, without a pause from tile to tile, and with OVERLAP fills
it with weights while the kernel before still runs. With a norm, four warps multiply x by its
weights. The others multiply by W and write. Small products, bound by how soon a kernel can begin,
take half of a multiprocessor only, so that the next kernel's programs begin next to them.

x is the left operand, its rows padded to 64 as the tensor cores want them; the columns of a tile
are up to three powers of two.

Written in Gluon, Triton's lower level: a loop of Triton's drains its copies at every tile's end,
and begins none before a wait.
"""

from typing import Any

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kernels.launching.launch import ceil_div
from kernels.launching.repeated_launch import Launch
from kernels.linear.skinny_ring import (
    CHUNK,
    PANEL,
    let_kernel_after_begin,
    produce,
    scale_rows,
    sum_of,
    wait_for_kernel_before,
)
from kernels.linear.skinny_tiles import (
    HOPPER_PANEL,
    MAX_PIECES,
    MIN_PRODUCT_ROWS,
    Fused,
    SkinnyTile,
    column_pieces,
)

PRODUCER_REGISTERS = 24
SCALER_REGISTERS = 96
REGISTERS = 65536
"""of a multiprocessor"""
MIN_RING = 2
"""units: one is freed when the next is multiplied"""
ALIGNMENT = 16
"""bytes, what the tensor memory accelerator asks for"""
LAYOUT = gl.NVMMASharedLayout(2 * HOPPER_PANEL, 16, 2)
"""of a panel in shared memory"""


@gluon.jit
def unhoisted(number):
    """The same number. The compiler would compute addresses that depend on it before the loop, one
    per element of a tile, and keep them in registers all the way."""
    return gl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [number], gl.int32, False, 1)


@gluon.jit
def settle(products, PENDING: gl.constexpr):
    """Wait until at most PENDING products are in flight."""
    if len(products) == 1:
        return (warpgroup_mma_wait(PENDING, deps=products),)
    else:  # noqa: RET505  (the compiler would see a second type of result)
        return warpgroup_mma_wait(PENDING, deps=products)


@gluon.jit
def empty_product(ROWS: gl.constexpr, WIDE: gl.constexpr, NUM_WARPS: gl.constexpr):
    return gl.zeros([ROWS, WIDE], gl.float32, acc_layout(WIDE, NUM_WARPS))


@gluon.jit
def zeros(smems, ROWS: gl.constexpr, NUM_WARPS: gl.constexpr):
    """Products of nothing yet, one for each piece."""
    products = ()
    for index in gl.static_range(len(smems)):
        products = products + (empty_product(ROWS, smems[index].shape[1], NUM_WARPS),)  # noqa: RUF005
    return products


@gluon.jit
def multiply(products, x_smem, smems, stage, ROWS: gl.constexpr, PANELS: gl.constexpr):
    """Add one unit of one piece. x's tile has fewer rows than the product; what follows it in
    shared memory, whatever it is, makes rows that are never written."""
    added = ()
    for index in gl.static_range(len(smems)):
        product = products[index]
        for panel in gl.static_range(PANELS):
            slot = stage * PANELS + panel
            x_tile = x_smem.index(slot)._reinterpret(x_smem.dtype, [ROWS, PANEL], x_smem.layout)
            w_tile = smems[index].index(slot).permute((1, 0))
            product = warpgroup_mma(x_tile, w_tile, product, is_async=True)
        added = added + (product,)  # noqa: RUF005
    return settle(added, len(smems) * PANELS)


@gluon.jit
def consume(
    smems, x_smem, square_smem, usable, free, squared, read, bias_ptr, residual_ptr, output_ptr,
    program, num_programs, num_rows, residual_stride, output_stride,
    COLUMNS: gl.constexpr, TILES: gl.constexpr, STEPS: gl.constexpr, GATED: gl.constexpr,
    BIAS: gl.constexpr, NORM: gl.constexpr, RESIDUAL: gl.constexpr, PIECES: gl.constexpr,
    ROWS: gl.constexpr, PANELS: gl.constexpr, STAGES: gl.constexpr, OVERLAP: gl.constexpr,
    NUM_WARPS: gl.constexpr,
):  # fmt: skip
    """Multiply what the producer brings."""
    if OVERLAP:
        wait_for_kernel_before()
        let_kernel_after_begin()
    number = 0
    for tile in range(program, TILES, num_programs):
        products = zeros(smems, ROWS, NUM_WARPS)
        for step in range(STEPS):
            stage = number % STAGES
            mbarrier.wait(usable.index(stage), number // STAGES & 1)
            # These products go on while the next unit is waited for; those before have ended.
            products = multiply(products, x_smem, smems, stage, ROWS, PANELS)
            mbarrier.arrive(free.index((number + STAGES - 1) % STAGES), pred=step > 0)
            number += 1
        products = settle(products, 0)
        mbarrier.arrive(free.index((number + STAGES - 1) % STAGES))
        if NORM:
            mbarrier.wait(squared, (number // STEPS & 1) ^ 1)
        scales = square_smem._reinterpret(gl.float32, [ROWS], square_smem.layout)
        column = tile * sum_of(PIECES)
        for index in gl.static_range(len(PIECES)):
            store_piece(
                products[index], scales, bias_ptr, residual_ptr, output_ptr, column, num_rows,
                residual_stride, output_stride, COLUMNS, GATED, BIAS, NORM, RESIDUAL,
                acc_layout(products[index].shape[1], NUM_WARPS),
            )  # fmt: skip
            column += PIECES[index]
        if NORM:
            mbarrier.arrive(read)


@gluon.constexpr_function
def acc_layout(width, num_warps):
    """Layout of a product of `width` columns; for 0, any valid one."""
    return gl.NVMMADistributedLayout([3, 0], [num_warps, 1], [16, max(8, width), 16])


@gluon.jit
def store_piece(
    product, scales, bias_ptr, residual_ptr, output_ptr, column, num_rows, residual_stride,
    output_stride, COLUMNS: gl.constexpr, GATED: gl.constexpr, BIAS: gl.constexpr,
    NORM: gl.constexpr, RESIDUAL: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    """Norm, bias, gate and residual of one piece of a tile."""
    ROWS: gl.constexpr = product.shape[0]
    WIDE: gl.constexpr = product.shape[1]
    WIDTH: gl.constexpr = WIDE // 2 if GATED else WIDE
    if NORM:
        product = product * scales.load(gl.SliceLayout(1, layout))[:, None]
    if BIAS:
        index = gl.arange(0, WIDE, gl.SliceLayout(0, layout))
        at = gl.minimum(column + index % WIDTH, COLUMNS - 1) + index // WIDTH * COLUMNS
        product += gl.load(bias_ptr + at).to(gl.float32)[None, :]
    narrow: gl.constexpr = acc_layout(WIDTH, layout.warps_per_cta[0])
    if GATED:
        gate, up = gl.split(gl.permute(gl.reshape(product, [ROWS, 2, WIDTH]), (0, 2, 1)))
        gated = gate / (1.0 + gl.exp(-gate)) * up
        result = gl.convert_layout(gated, narrow, assert_trivial=True)
    else:
        result = product
    residual_stride = unhoisted(residual_stride)
    output_stride = unhoisted(output_stride)
    columns = column + gl.arange(0, WIDTH, gl.SliceLayout(0, narrow))
    rows = gl.arange(0, ROWS, gl.SliceLayout(1, narrow))
    inside = (columns < COLUMNS)[None, :] & (rows < num_rows)[:, None]
    if RESIDUAL:
        place = residual_ptr + rows[:, None] * residual_stride + columns[None, :]
        result += gl.load(place, inside, other=0.0).to(gl.float32)
    place = output_ptr + rows[:, None] * output_stride + columns[None, :]
    gl.store(place, result.to(output_ptr.dtype.element_ty), inside)


@gluon.jit(do_not_specialize=["num_rows"])
def skinny_hopper_kernel(
    weight_desc0,
    weight_desc1,
    weight_desc2,
    x_desc,
    bias_ptr,
    norm_ptr,
    residual_ptr,
    output_ptr,
    num_rows,
    eps,
    residual_stride,
    output_stride,
    COLUMNS: gl.constexpr,
    INPUTS: gl.constexpr,
    GATED: gl.constexpr,
    BIAS: gl.constexpr,
    NORM: gl.constexpr,
    RESIDUAL: gl.constexpr,
    PIECES: gl.constexpr,
    ROWS: gl.constexpr,
    PANELS: gl.constexpr,
    STAGES: gl.constexpr,
    OVERLAP: gl.constexpr,
    NUM_WARPS: gl.constexpr,
    PRODUCER: gl.constexpr,
    SCALER: gl.constexpr,
):
    """Grid (programs,): program p computes tiles p, p + programs and so on. weight_desc0 to 2: W
    in boxes of one piece each."""
    HALVES: gl.constexpr = 2 if GATED else 1
    STEPS: gl.constexpr = (INPUTS + PANELS * PANEL - 1) // (PANELS * PANEL)
    WIDTH: gl.constexpr = sum_of(PIECES)
    TILES: gl.constexpr = (COLUMNS + WIDTH - 1) // WIDTH
    SLOTS: gl.constexpr = STAGES * PANELS
    X_ROWS: gl.constexpr = x_desc.block_shape[0]
    program = gl.program_id(0)
    num_programs = gl.num_programs(0)
    count = (TILES - program + num_programs - 1) // num_programs * STEPS

    dtype: gl.constexpr = x_desc.dtype
    layout: gl.constexpr = x_desc.layout
    x_smem = gl.allocate_shared_memory(dtype, [SLOTS + ROWS // X_ROWS - 1, X_ROWS, PANEL], layout)
    smems = ()
    wholes = ()
    for index in gl.static_range(len(PIECES)):
        smem = gl.allocate_shared_memory(dtype, [SLOTS * HALVES, PIECES[index], PANEL], layout)
        whole = smem
        if GATED:
            whole = smem._reinterpret(dtype, [SLOTS, 2 * PIECES[index], PANEL], layout)
        smems = smems + (smem,)  # noqa: RUF005
        wholes = wholes + (whole,)  # noqa: RUF005
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    square_smem = gl.allocate_shared_memory(gl.float32, [ROWS // X_ROWS, X_ROWS], flat)
    barrier: gl.constexpr = mbarrier.MBarrierLayout()
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    squared = gl.allocate_shared_memory(gl.int64, [1], barrier)
    read = gl.allocate_shared_memory(gl.int64, [1], barrier)
    mbarrier.init(squared, 1)
    mbarrier.init(read, 1)
    for stage in gl.static_range(STAGES):
        mbarrier.init(ready.index(stage), 1)
        mbarrier.init(free.index(stage), 1)
    if NORM:
        CHUNKS: gl.constexpr = (INPUTS + CHUNK - 1) // CHUNK
        scale_smem = gl.allocate_shared_memory(dtype, [CHUNKS * CHUNK // PANEL, PANEL], flat)
        scaled = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
        for stage in gl.static_range(STAGES):
            mbarrier.init(scaled.index(stage), 1)
        gl.warp_specialize(
            [
                (consume, (
                    wholes, x_smem, square_smem, scaled, free, squared, read, bias_ptr,
                    residual_ptr, output_ptr, program, num_programs, num_rows, residual_stride,
                    output_stride, COLUMNS, TILES, STEPS, GATED, BIAS, NORM, RESIDUAL, PIECES,
                    ROWS, PANELS, STAGES, OVERLAP, NUM_WARPS,
                )),
                (scale_rows, (
                    x_smem, scale_smem, square_smem, ready, scaled, squared, read, norm_ptr,
                    program, num_programs, eps, INPUTS, TILES, STEPS, PANELS, STAGES, 4,
                )),
                (produce, (
                    (weight_desc0, weight_desc1, weight_desc2), x_desc, smems, x_smem,
                    ready, free, program, num_programs, count, COLUMNS, STEPS, GATED,
                    PIECES, X_ROWS, PANELS, STAGES, OVERLAP,
                )),
            ],
            [4, 1],
            [SCALER, PRODUCER],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (consume, (
                    wholes, x_smem, square_smem, ready, free, squared, read, bias_ptr,
                    residual_ptr, output_ptr, program, num_programs, num_rows, residual_stride,
                    output_stride, COLUMNS, TILES, STEPS, GATED, BIAS, NORM, RESIDUAL, PIECES,
                    ROWS, PANELS, STAGES, OVERLAP, NUM_WARPS,
                )),
                (produce, (
                    (weight_desc0, weight_desc1, weight_desc2), x_desc, smems, x_smem,
                    ready, free, program, num_programs, count, COLUMNS, STEPS, GATED,
                    PIECES, X_ROWS, PANELS, STAGES, OVERLAP,
                )),
            ],
            [1],
            [PRODUCER],
        )  # fmt: skip


def hopper_launch(
    x: torch.Tensor,
    weight: torch.Tensor,
    residual: torch.Tensor,
    output: torch.Tensor,
    tile: SkinnyTile,
    fused: Fused,
) -> Launch:
    """Of skinny_linear's arguments, checked. To be called with descriptors and with bias, norm,
    residual and output."""
    width = sum(column_pieces(tile.num_columns // (1 + fused.gated)))
    constants, options = hopper_constants(
        tile, weight.shape[1], gated=fused.gated, norm=fused.eps is not None
    )
    constants |= {"COLUMNS": output.shape[1], "BIAS": fused.bias, "RESIDUAL": fused.residual}
    return Launch(
        skinny_hopper_kernel,
        grid=(min(ceil_div(output.shape[1], width), tile.num_programs),),
        numbers=(
            x.shape[0],
            fused.eps or 0.0,
            residual.stride(0) if fused.residual else 0,
            output.stride(0),
        ),
        constants=constants,
        options=options,
    )


def hopper_descriptors(
    x: torch.Tensor, weight: torch.Tensor, tile: SkinnyTile, *, gated: bool
) -> tuple[TensorDescriptor, ...]:
    """ValueError where the tensor memory accelerator could not read them."""
    for tensor in (x, weight):
        if tensor.data_ptr() % ALIGNMENT or tensor.stride(0) * tensor.itemsize % ALIGNMENT:
            raise ValueError(f"rows of x and of the weight must begin at {ALIGNMENT} bytes")
    pieces = column_pieces(tile.num_columns // (1 + gated))
    boxes = {piece: _panels(weight, piece) for piece in pieces}
    weights = [boxes[piece] for piece in (*pieces, pieces[0], pieces[0])[:MAX_PIECES]]
    return (*weights, _panels(x, tile.num_rows))


def _panels(matrix: torch.Tensor, num_rows: int) -> TensorDescriptor:
    """A matrix as boxes of `num_rows` rows of a panel."""
    box = [num_rows, HOPPER_PANEL]
    return TensorDescriptor(matrix, matrix.shape, matrix.stride(), box, LAYOUT)


def hopper_constants(
    tile: SkinnyTile, inputs: int, *, gated: bool, norm: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Constants of the kernel that follow from the tile, and Triton's options."""
    scale_bytes = -(-inputs // CHUNK.value) * CHUNK.value * 2 if norm else 0
    num_stages = tile.stages_beside(scale_bytes)
    if num_stages < MIN_RING:
        raise ValueError(f"a norm of {inputs} inputs leaves no room for {tile}")
    constants = {
        "INPUTS": inputs,
        "GATED": gated,
        "NORM": norm,
        "PIECES": column_pieces(tile.num_columns // (1 + gated)),
        "ROWS": max(MIN_PRODUCT_ROWS, tile.num_rows),
        "PANELS": tile.num_inputs // HOPPER_PANEL,
        "STAGES": num_stages,
        "OVERLAP": tile.overlap,
        "NUM_WARPS": tile.num_warps,
        "PRODUCER": PRODUCER_REGISTERS,
        "SCALER": SCALER_REGISTERS,
    }
    options = tile.launch_options
    del options["num_stages"]
    if tile.num_resident > 1:
        threads = 32 * (tile.num_warps + (8 if norm else 4))
        options["maxnreg"] = REGISTERS // tile.num_resident // threads // 8 * 8
    return constants, options
