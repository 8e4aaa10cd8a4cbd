"""Causal attention of packed prompt chunks over paged K and V.

The K and V of a chunk's own tokens are in the pool already, like those of all positions before,
so a chunk over a cached prefix and a whole prompt are the same. One program computes one tile of
query rows of one head (kernels/attention/prefill_plan.py lists them, most work first) with a
running softmax over tiles of keys, the unmasked ones in a loop of their own. Keys come through the
block table; this form works on every GPU, paged_prefill_hopper.py is the fast one for Hopper.

Pool: [num_blocks, num_layers, 2, num_kv_heads, block_size, head_dim], contiguous.
"""

import math
from functools import partial

import torch
import triton
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction

from kernels.attention.paged_prefill_hopper import GROUP_ROWS, hopper_launch
from kernels.attention.prefill_plan import ITEM_FIELDS, PrefillPlan
from kernels.launching.launch import (
    check_interpretable,
    check_pool,
    check_same_device,
    layer_offset,
    next_power_of_two,
)
from kernels.launching.repeated_launch import Launch


@triton.jit
def attend_tiles(
    q,
    mixed,
    peak,
    total,
    positions,
    plane,
    table,
    first_tile,
    end_tile,
    length,
    scale,
    window,
    block_stride,
    plane_stride,
    MASK: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TILE_KEYS: tl.constexpr,
    TILE_DIM: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Tiles [first_tile, end_tile) of keys into the running sum, maximum and total weight.
    `positions`: of the query rows. Without MASK every row sees every key of them."""
    offsets = tl.arange(0, TILE_KEYS)
    columns = tl.arange(0, TILE_DIM)
    for tile in range(first_tile, end_tile):
        keys_at = tile * TILE_KEYS + offsets
        held = keys_at < length
        # Blocks left of every row's window may be gone from the table.
        if MASK:
            held &= keys_at > tl.min(positions, 0) - window
        blocks = tl.load(table + keys_at // BLOCK_SIZE, held, other=0)
        start = blocks.to(tl.int64) * block_stride + keys_at % BLOCK_SIZE * HEAD_DIM
        where = plane + start[:, None] + columns[None, :]
        present = columns[None, :] < HEAD_DIM
        if MASK:
            present &= held[:, None]
        keys = tl.load(where, present, other=0.0)
        scores = tl.dot(q, tl.trans(keys), input_precision=PRECISION) * scale
        if MASK:
            distance = positions[:, None] - keys_at[None, :]
            scores = tl.where((distance >= 0) & (distance < window), scores, float("-inf"))
        higher = tl.maximum(peak, tl.max(scores, 1))
        base = higher
        if MASK:
            base = tl.where(higher == float("-inf"), 0.0, higher)
        fade = tl.exp2(peak - base)
        weights = tl.exp2(scores - base[:, None])
        total = total * fade + tl.sum(weights, 1)
        # Slots that were never written may hold NaN, and 0 * NaN is NaN: `present` leaves them out.
        values = tl.load(where + plane_stride, present, other=0.0)
        mixed = tl.dot(
            weights.to(values.dtype), values, mixed * fade[:, None], input_precision=PRECISION
        )
        peak = higher
    return mixed, peak, total


@triton.jit(do_not_specialize=["window", "section", "table_stride"])
def paged_prefill_kernel(
    q_ptr,
    pool_ptr,
    table_ptr,
    item_ptr,
    output_ptr,
    layer_offset,
    scale,
    window,
    section,
    q_stride_row,
    q_stride_head,
    output_stride_row,
    output_stride_head,
    table_stride,
    block_stride,
    plane_stride,
    GROUP: tl.constexpr,
    FIELDS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_KEYS: tl.constexpr,
    TILE_DIM: tl.constexpr,
    PRECISION: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """Grid (items * section, heads / section). `scale` carries log2(e): weights are powers of
    two. Strides are in elements; `layer_offset` is where the layer begins in a block."""
    item = item_ptr + tl.program_id(0) // section * FIELDS
    head = tl.program_id(1) * section + tl.program_id(0) % section
    start = tl.load(item)
    num_rows = tl.load(item + 1)
    row = tl.load(item + 2)
    length = tl.load(item + 3)
    sequence = tl.load(item + 4)
    before = length - num_rows
    rows = row + tl.arange(0, TILE_ROWS)
    columns = tl.arange(0, TILE_DIM)
    inside = (rows < num_rows)[:, None] & (columns < HEAD_DIM)[None, :]
    at = (start + rows).to(tl.int64)[:, None]
    q_at = at * q_stride_row + head * q_stride_head + columns[None, :]
    q = tl.load(q_ptr + q_at, inside, other=0.0)

    # Tiles of keys: [first, shown) left of some row's window, [shown, masked) seen by all rows,
    # [masked, end) after some row's position.
    positions = before + rows
    end = tl.cdiv(before + tl.minimum(row + TILE_ROWS, num_rows), TILE_KEYS)
    masked = (before + row + 1) // TILE_KEYS
    first = tl.maximum(before + row - window + 1, 0) // TILE_KEYS
    shown = first
    if WINDOW:
        shown = tl.cdiv(tl.maximum(before + row + TILE_ROWS - window, 0), TILE_KEYS)
        shown = tl.minimum(shown, end)
        masked = tl.maximum(masked, shown)
    table = table_ptr + sequence.to(tl.int64) * table_stride
    plane = pool_ptr + layer_offset + (head // GROUP) * (BLOCK_SIZE * HEAD_DIM)
    peak = tl.full([TILE_ROWS], float("-inf"), tl.float32)
    total = tl.zeros([TILE_ROWS], tl.float32)
    mixed = tl.zeros([TILE_ROWS, TILE_DIM], tl.float32)
    if WINDOW:
        mixed, peak, total = attend_tiles(
            q, mixed, peak, total, positions, plane, table, first, shown, length, scale, window,
            block_stride, plane_stride, True, BLOCK_SIZE, HEAD_DIM, TILE_KEYS, TILE_DIM, PRECISION,
        )  # fmt: skip
    mixed, peak, total = attend_tiles(
        q, mixed, peak, total, positions, plane, table, shown, masked, length, scale, window,
        block_stride, plane_stride, False, BLOCK_SIZE, HEAD_DIM, TILE_KEYS, TILE_DIM, PRECISION,
    )  # fmt: skip
    mixed, peak, total = attend_tiles(
        q, mixed, peak, total, positions, plane, table, masked, end, length, scale, window,
        block_stride, plane_stride, True, BLOCK_SIZE, HEAD_DIM, TILE_KEYS, TILE_DIM, PRECISION,
    )  # fmt: skip
    total = tl.where(rows < num_rows, total, 1.0)
    target = output_ptr + at * output_stride_row + head * output_stride_head + columns[None, :]
    tl.store(target, (mixed / total[:, None]).to(output_ptr.dtype.element_ty), inside)


def paged_prefill(
    q: torch.Tensor,
    kv_pool: torch.Tensor,
    layer: int,
    block_tables: torch.Tensor,
    plan: PrefillPlan,
    scale: float,
    output: torch.Tensor,
) -> None:
    """Write the attention of packed queries q [T, num_heads, head_dim] into `output` of that shape.

    Sequence s owns the next query_lens[s] rows of the plan, the last of its context_lens[s]
    positions, whose blocks block_tables i32[S, width] names. A row sees the last `plan.window` (0:
    all) positions up to its own, K and V of layer `layer`. The plan serves all layers that share
    its window. Rows past the last sequence's give zeros. q and output may be strided, head_dim must
    be contiguous. The host waits for nothing. ValueError or TypeError for what does not fit.
    """
    launch = plan.launches.find(
        partial(_launch, plan), (q, block_tables, output), kv_pool, scale * math.log2(math.e)
    )
    offset = layer_offset(kv_pool, layer)
    if plan.num_rows < q.shape[0]:
        output[plan.num_rows :].zero_()
    if plan.tile.hopper:
        groups = offset // (GROUP_ROWS * kv_pool.shape[5])
        launch(q, block_tables, plan.items, output, offset=groups)
    else:
        launch(q, kv_pool, block_tables, plan.items, output, offset=offset)


def _launch(
    plan: PrefillPlan,
    q: torch.Tensor,
    block_tables: torch.Tensor,
    output: torch.Tensor,
    kv_pool: torch.Tensor,
    scale: float,
) -> Launch:
    _check(q, kv_pool, block_tables, plan, output)
    form = hopper_launch if plan.tile.hopper else _portable_launch
    return form(plan, q, block_tables, output, kv_pool, scale)


def _portable_launch(
    plan: PrefillPlan,
    q: torch.Tensor,
    block_tables: torch.Tensor,
    output: torch.Tensor,
    kv_pool: torch.Tensor,
    scale: float,
) -> Launch:
    num_kv_heads, block_size, head_dim = kv_pool.shape[3:]
    return Launch(
        paged_prefill_kernel,
        grid=(plan.items.shape[0] * plan.section, q.shape[1] // plan.section),
        numbers=(
            scale,
            plan.window_keys,
            plan.section,
            q.stride(0),
            q.stride(1),
            output.stride(0),
            output.stride(1),
            block_tables.stride(0),
            kv_pool.stride(0),
            kv_pool.stride(2),
        ),
        constants={
            "GROUP": q.shape[1] // num_kv_heads,
            "FIELDS": ITEM_FIELDS,
            "BLOCK_SIZE": block_size,
            "HEAD_DIM": head_dim,
            "TILE_ROWS": plan.tile.num_rows,
            "TILE_KEYS": plan.tile.num_keys,
            "TILE_DIM": next_power_of_two(head_dim),
            "PRECISION": "ieee" if q.dtype is torch.float32 else "tf32",
            "WINDOW": plan.window > 0,
        },
        options={"num_warps": plan.tile.num_warps, "num_stages": plan.tile.num_stages},
    )


def _check(
    q: torch.Tensor,
    kv_pool: torch.Tensor,
    block_tables: torch.Tensor,
    plan: PrefillPlan,
    output: torch.Tensor,
) -> None:
    check_pool(kv_pool)
    expected = (plan.num_heads, kv_pool.shape[5])
    if q.shape != output.shape or q.dim() != 3 or q.shape[1:] != expected:
        raise ValueError(f"q {tuple(q.shape)}, output {tuple(output.shape)}, planned {expected}")
    if q.shape[0] < plan.num_rows or kv_pool.shape[3] != plan.num_kv_heads:
        raise ValueError(f"q {tuple(q.shape)}, pool {tuple(kv_pool.shape)} do not fit the plan")
    if q.stride(2) != 1 or output.stride(2) != 1:
        raise ValueError("head_dim of q and output must be contiguous")
    if block_tables.dim() != 2 or block_tables.shape[0] != plan.num_sequences:
        raise ValueError(f"block_tables {tuple(block_tables.shape)}, {plan.num_sequences} planned")
    if block_tables.dtype is not torch.int32 or block_tables.stride(1) != 1:
        raise TypeError(f"block_tables is {block_tables.dtype}, need contiguous rows of int32")
    if not q.dtype == kv_pool.dtype == output.dtype:
        raise TypeError(f"q {q.dtype}, kv_pool {kv_pool.dtype}, output {output.dtype} must be one")
    check_same_device(q, kv_pool, block_tables, plan.items, output)
    if isinstance(paged_prefill_kernel, InterpretedFunction):
        check_interpretable(q, kv_pool)
