"""Attention of one new token per sequence over its paged K and V.

The visible keys of every (sequence, KV head) are cut into tiles; all tiles of a batch stand in
one line, sequence after sequence, head after head, and each program takes an equal run of it
(kernels/attention/decode_plan.py). So the grid is fixed, lengths are read on the GPU, and a batch
of one long sequence is shared as evenly as one of many short ones. All query heads of a KV head are
rows of one product. A run that holds only part of a head's tiles leaves an unnormalised sum and the
last program of that head to finish adds the parts up, always in the same order.

Pool: [num_blocks, num_layers, 2, num_kv_heads, block_size, head_dim], contiguous.
"""

import math
from functools import partial

import torch
import triton
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction

from kernels.attention.decode_parts import (
    leave_part,
    merge_kernel,
    merge_parts,
    store_rows,
    store_zeros,
)
from kernels.attention.decode_plan import PLAN_FIELDS, DecodePlan, num_tiles_of
from kernels.attention.decode_tiles import MERGE_WARPS, tile_parts, tile_rows
from kernels.launching.launch import (
    check_interpretable,
    check_pool,
    check_same_device,
    layer_offset,
    next_power_of_two,
    overlap_options,
)
from kernels.launching.overlap import follow
from kernels.launching.repeated_launch import Launch


@triton.jit
def paged_decode_kernel(
    q_ptr,
    pool_ptr,
    table_ptr,
    length_ptr,
    plan_ptr,
    part_ptr,
    stat_ptr,
    arrival_ptr,
    output_ptr,
    layer_offset,
    scale,
    window,
    q_stride_row,
    q_stride_head,
    output_stride_row,
    output_stride_head,
    table_stride,
    block_stride,
    plane_stride,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TILE_KEYS: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_DIM: tl.constexpr,
    TILE_PARTS: tl.constexpr,
    FIELDS: tl.constexpr,
    PRECISION: tl.constexpr,
    MERGE_APART: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Grid (programs,). `scale` carries log2(e): weights are powers of two. Strides are in
    elements; `layer_offset` is where the layer begins in a block."""
    program = tl.program_id(0)
    entry = plan_ptr + program * FIELDS
    row = tl.load(entry)
    head = tl.load(entry + 1)
    tile = tl.load(entry + 2)
    left = tl.load(entry + 3)
    run = tl.load(entry + 4)
    length = tl.load(entry + 5)
    empty = tl.load(entry + 6)

    unit = program * run
    while left > 0:
        first_key, first_tile, num_tiles = num_tiles_of(length, window, TILE_KEYS)
        count = tl.minimum(left, num_tiles - tile)
        if count > 0:
            peak, weight, mixed = attend_tiles(
                q_ptr + row.to(tl.int64) * q_stride_row + head * GROUP * q_stride_head,
                pool_ptr + layer_offset + head * (BLOCK_SIZE * HEAD_DIM),
                table_ptr + row.to(tl.int64) * table_stride,
                (first_tile + tile) * TILE_KEYS,
                count,
                first_key,
                length,
                scale,
                q_stride_head,
                block_stride,
                plane_stride,
                GROUP,
                BLOCK_SIZE,
                HEAD_DIM,
                TILE_KEYS,
                TILE_ROWS,
                TILE_DIM,
                PRECISION,
                OVERLAP,
            )
            target = output_ptr + row.to(tl.int64) * output_stride_row
            target += head * GROUP * output_stride_head
            if count == num_tiles:
                result = mixed / weight[:, None]
                store_rows(target, output_stride_head, result, GROUP, HEAD_DIM)
            else:
                slot = 2 * program + (unit != program * run).to(tl.int32)
                leave_part(part_ptr, stat_ptr, slot, peak, weight, mixed, GROUP, HEAD_DIM)
                if not MERGE_APART:
                    begin = unit - tile
                    first = begin // run
                    num_parts = (begin + num_tiles - 1) // run - first + 1
                    tl.debug_barrier()  # the whole program's stores come before its arrival
                    if tl.atomic_add(arrival_ptr + first, 1, sem="acq_rel") == num_parts - 1:
                        tl.store(arrival_ptr + first, 0)
                        merge_parts(
                            part_ptr,
                            stat_ptr,
                            target,
                            output_stride_head,
                            begin,
                            num_parts,
                            run,
                            0,
                            GROUP,
                            GROUP,
                            HEAD_DIM,
                            TILE_DIM,
                            TILE_PARTS,
                        )
            left -= count
            unit += count
        tile = 0
        head += 1
        if (head == NUM_KV_HEADS) | (num_tiles == 0):
            head = 0
            row += 1
            if left > 0:
                length = tl.load(length_ptr + row)

    if OVERLAP:  # programs without work too: whoever follows may count on what came before us
        tl.extra.cuda.gdc_wait()
    if empty != 0:  # row `program` has no sequence
        target = output_ptr + program.to(tl.int64) * output_stride_row
        zeros = tl.zeros([TILE_ROWS, TILE_DIM], tl.float32)
        store_zeros(target, output_stride_head, zeros, NUM_KV_HEADS, GROUP, HEAD_DIM)


@triton.jit
def attend_tiles(
    q_ptr,
    plane_ptr,
    table_ptr,
    start_key,
    count,
    first_key,
    length,
    scale,
    q_stride_head,
    block_stride,
    plane_stride,
    GROUP: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TILE_KEYS: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_DIM: tl.constexpr,
    PRECISION: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """The query heads of one KV head over `count` tiles from `start_key` on: each row's largest
    score, its sum of weights and its unnormalised sum of values. `plane_ptr` is where K of this
    head begins in block 0."""
    rows = tl.arange(0, TILE_ROWS)
    columns = tl.arange(0, TILE_DIM)
    real = columns < HEAD_DIM
    keys_at = start_key + tl.arange(0, TILE_KEYS)
    seen = (keys_at >= first_key) & (keys_at < length)
    blocks = tl.load(table_ptr + keys_at // BLOCK_SIZE, seen, other=0)
    follow(OVERLAP)  # so far nothing was read that the kernel before this one may write
    q_at = q_ptr + rows[:, None] * q_stride_head + columns[None, :]
    q = tl.load(q_at, (rows < GROUP)[:, None] & real[None, :], other=0.0)
    peak = tl.full([TILE_ROWS], float("-inf"), tl.float32)
    total = tl.zeros([TILE_ROWS, TILE_KEYS], tl.float32)
    mixed = tl.zeros([TILE_ROWS, TILE_DIM], tl.float32)
    for _ in range(count):
        start = blocks.to(tl.int64) * block_stride + keys_at % BLOCK_SIZE * HEAD_DIM
        where = plane_ptr + columns[None, :] + start[:, None]
        # Slots that were never written may hold NaN, and 0 * NaN is NaN: both loads are masked.
        present = seen[:, None] & real[None, :]
        keys = tl.load(where, present, other=0.0)
        scores = tl.dot(q, tl.trans(keys), input_precision=PRECISION) * scale
        scores = tl.where(seen[None, :], scores, float("-inf"))
        higher = tl.maximum(peak, tl.max(scores, 1))
        fade = tl.exp2(peak - higher)
        weights = tl.exp2(scores - higher[:, None])
        values = tl.load(where + plane_stride, present, other=0.0)
        # Summed over keys after the loop: one exchange between warps less per tile.
        total = total * fade[:, None] + weights
        mixed = tl.dot(
            weights.to(values.dtype), values, mixed * fade[:, None], input_precision=PRECISION
        )
        peak = higher
        keys_at += TILE_KEYS
        seen = (keys_at >= first_key) & (keys_at < length)
        blocks = tl.load(table_ptr + keys_at // BLOCK_SIZE, seen, other=0)
    return peak, tl.sum(total, 1), mixed


def paged_decode(
    q: torch.Tensor,
    kv_pool: torch.Tensor,
    layer: int,
    block_tables: torch.Tensor,
    plan: DecodePlan,
    scale: float,
    output: torch.Tensor,
) -> None:
    """Write the attention of q [B, num_heads, head_dim] into `output` of that shape.

    Row b sees the last `plan.window` (0: all) of the `plan.context_lens[b]` positions whose blocks
    block_tables i32[B, width] names, K and V of layer `layer`, its own position included. Length 0
    gives zeros. `plan` is filled once per step and serves all layers that share its window.
    Nothing is allocated and the host waits for nothing. q and output may be strided, head_dim must
    be contiguous. ValueError or TypeError for what does not fit.
    """
    launch = plan.launches.find(
        partial(_launch, plan),
        (q, kv_pool, block_tables, output),
        scale * math.log2(math.e),
    )
    launch(
        q,
        kv_pool,
        block_tables,
        plan.context_lens,
        plan.entries,
        plan.parts,
        plan.stats,
        plan.arrivals,
        output,
        offset=layer_offset(kv_pool, layer),
    )
    if plan.tile.merge_apart:
        merge = plan.launches.find(partial(_merge_launch, plan), (output,))
        merge(plan.context_lens, plan.entries, plan.starts, plan.parts, plan.stats, output)


def _launch(
    plan: DecodePlan,
    q: torch.Tensor,
    kv_pool: torch.Tensor,
    block_tables: torch.Tensor,
    output: torch.Tensor,
    scale: float,
) -> Launch:
    _check(q, kv_pool, block_tables, plan, output)
    tile = plan.tile
    num_kv_heads, block_size, head_dim = kv_pool.shape[3:]
    group = q.shape[1] // num_kv_heads
    exact = q.dtype is torch.float32
    return Launch(
        paged_decode_kernel,
        grid=(plan.num_programs,),
        numbers=(
            scale,
            plan.window_keys,
            q.stride(0),
            q.stride(1),
            output.stride(0),
            output.stride(1),
            block_tables.stride(0),
            kv_pool.stride(0),
            kv_pool.stride(2),
        ),
        constants={
            "NUM_KV_HEADS": num_kv_heads,
            "GROUP": group,
            "BLOCK_SIZE": block_size,
            "HEAD_DIM": head_dim,
            "TILE_KEYS": tile.num_keys,
            "TILE_ROWS": tile_rows(group, exact),
            "TILE_DIM": next_power_of_two(head_dim),
            "TILE_PARTS": tile_parts(group * head_dim, tile.num_warps),
            "FIELDS": PLAN_FIELDS,
            "PRECISION": "ieee" if exact else "tf32",
            "MERGE_APART": tile.merge_apart,
            "OVERLAP": tile.overlap,
        },
        options=tile.launch_options,
    )


def _merge_launch(plan: DecodePlan, output: torch.Tensor) -> Launch:
    """Of the kernel that adds the parts, where that is one of its own."""
    tile = plan.tile
    num_rows, num_heads, head_dim = output.shape
    return Launch(
        merge_kernel,
        grid=(num_rows, num_heads),
        numbers=(plan.window_keys, output.stride(0), output.stride(1)),
        constants={
            "NUM_KV_HEADS": plan.num_kv_heads,
            "GROUP": num_heads // plan.num_kv_heads,
            "HEAD_DIM": head_dim,
            "TILE_KEYS": tile.num_keys,
            "TILE_DIM": next_power_of_two(head_dim),
            "TILE_PARTS": tile_parts(head_dim, MERGE_WARPS),
            "OVERLAP": tile.overlap,
        },
        options={"num_warps": MERGE_WARPS, **overlap_options(tile.overlap)},
    )


def _check(
    q: torch.Tensor,
    kv_pool: torch.Tensor,
    block_tables: torch.Tensor,
    plan: DecodePlan,
    output: torch.Tensor,
) -> None:
    check_pool(kv_pool)
    num_kv_heads, _, head_dim = kv_pool.shape[3:]
    num_rows = plan.context_lens.shape[0]
    expected = (num_rows, plan.parts.shape[1] * num_kv_heads, head_dim)
    if plan.num_kv_heads != num_kv_heads or q.shape != expected or output.shape != expected:
        raise ValueError(
            f"q {tuple(q.shape)}, output {tuple(output.shape)} do not fit {tuple(expected)}, "
            f"pool {tuple(kv_pool.shape)}"
        )
    if q.stride(2) != 1 or output.stride(2) != 1:
        raise ValueError("head_dim of q and output must be contiguous")
    if block_tables.dim() != 2 or block_tables.shape[0] != num_rows or block_tables.stride(1) != 1:
        raise ValueError(f"block_tables {tuple(block_tables.shape)} for {num_rows} rows")
    if block_tables.dtype is not torch.int32:
        raise TypeError(f"block_tables is {block_tables.dtype}, need int32")
    if not q.dtype == kv_pool.dtype == output.dtype:
        raise TypeError(f"q {q.dtype}, kv_pool {kv_pool.dtype}, output {output.dtype} must be one")
    check_same_device(q, kv_pool, block_tables, plan.context_lens, plan.entries, output)
    if isinstance(paged_decode_kernel, InterpretedFunction):
        check_interpretable(q, kv_pool)
