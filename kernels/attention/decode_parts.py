"""Results of paged_decode: written at once, or left in parts that are added up later.

A program leaves at most two parts: one of the head it begins with, in slot 2 * program, and one of
the head it ends with, in the next. So the parts of a head lie in slots that follow from the number
of its first unit, and are added in the order of the programs, whoever finishes first.
"""

import triton
import triton.language as tl

from kernels.attention.decode_plan import num_tiles_of
from kernels.launching.overlap import follow


@triton.jit
def store_rows(
    target,
    stride_head,
    result,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):
    """Write the query heads of one KV head."""
    rows = tl.arange(0, result.shape[0])
    columns = tl.arange(0, result.shape[1])
    inside = (rows < GROUP)[:, None] & (columns < HEAD_DIM)[None, :]
    place = target + rows[:, None] * stride_head + columns[None, :]
    tl.store(place, result.to(target.dtype.element_ty), inside)


@triton.jit
def store_zeros(
    target,
    stride_head,
    zeros,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):
    """Write all heads of a row that has no sequence."""
    for kv_head in range(NUM_KV_HEADS):
        place = target + kv_head * GROUP * stride_head
        store_rows(place, stride_head, zeros, GROUP, HEAD_DIM)


@triton.jit
def leave_part(
    part_ptr, stat_ptr, slot, peak, weight, mixed, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr
):
    """What one program has for a head that others have a share in."""
    rows = tl.arange(0, mixed.shape[0])
    part = part_ptr + slot * (GROUP * HEAD_DIM)
    store_rows(part, HEAD_DIM, mixed, GROUP, HEAD_DIM)
    tl.store(stat_ptr + slot * 2 * GROUP + rows, peak, rows < GROUP)
    tl.store(stat_ptr + (slot * 2 + 1) * GROUP + rows, weight, rows < GROUP)


@triton.jit
def merge_parts(
    part_ptr,
    stat_ptr,
    target,
    output_stride_head,
    begin,
    num_parts,
    run,
    first_row,
    NUM_ROWS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TILE_DIM: tl.constexpr,
    TILE_PARTS: tl.constexpr,
):
    """Add the parts of NUM_ROWS query heads of the KV head whose first unit is `begin`, and write
    the result to `target`."""
    WIDTH: tl.constexpr = triton.next_power_of_2(NUM_ROWS)
    rows = first_row + tl.arange(0, WIDTH)
    columns = tl.arange(0, TILE_DIM)
    real = rows < first_row + NUM_ROWS
    inside = real[:, None] & (columns < HEAD_DIM)[None, :]
    elements = rows[:, None] * HEAD_DIM + columns[None, :]
    first = begin // run
    first_slot = 2 * first + (begin != first * run).to(tl.int32)
    peak = tl.full([WIDTH], float("-inf"), tl.float32)
    weight = tl.zeros([WIDTH], tl.float32)
    mixed = tl.zeros([WIDTH, TILE_DIM], tl.float32)
    for start in range(0, num_parts, TILE_PARTS):
        parts = start + tl.arange(0, TILE_PARTS)
        slots = tl.where(parts == 0, first_slot, 2 * (first + parts))
        stat = slots[:, None] * (2 * GROUP) + rows[None, :]
        present = (parts < num_parts)[:, None] & real[None, :]
        peaks = tl.load(stat_ptr + stat, present, other=float("-inf"), cache_modifier=".cg")
        sums = tl.load(stat_ptr + stat + GROUP, present, other=0.0, cache_modifier=".cg")
        where = slots[:, None, None] * (GROUP * HEAD_DIM) + elements[None, :, :]
        shown = (parts < num_parts)[:, None, None] & inside[None, :, :]
        mixes = tl.load(part_ptr + where, shown, other=0.0, cache_modifier=".cg")
        higher = tl.maximum(peak, tl.max(peaks, 0))
        higher = tl.where(real, higher, 0.0)
        fade = tl.exp2(peak - higher)
        fades = tl.exp2(peaks - higher[None, :])
        weight = weight * fade + tl.sum(sums * fades, 0)
        mixed = mixed * fade[:, None] + tl.sum(mixes * fades[:, :, None], 0)
        peak = higher
    place = target + rows[:, None] * output_stride_head + columns[None, :]
    result = mixed / weight[:, None]
    tl.store(place, result.to(target.dtype.element_ty), inside)


@triton.jit
def merge_kernel(
    length_ptr,
    plan_ptr,
    start_ptr,
    part_ptr,
    stat_ptr,
    output_ptr,
    window,
    output_stride_row,
    output_stride_head,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TILE_KEYS: tl.constexpr,
    TILE_DIM: tl.constexpr,
    TILE_PARTS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Grid (sequences, query heads): the other way to add parts, after all of them are written."""
    row = tl.program_id(0)
    head = tl.program_id(1)
    run = tl.load(plan_ptr + 4)
    start = tl.load(start_ptr + row)
    _, _, num_tiles = num_tiles_of(tl.load(length_ptr + row), window, TILE_KEYS)
    begin = start + head // GROUP * num_tiles
    num_parts = (begin + num_tiles - 1) // run - begin // run + 1
    follow(OVERLAP)
    if (num_tiles > 0) & (num_parts > 1):
        target = output_ptr + row.to(tl.int64) * output_stride_row
        target += head // GROUP * GROUP * output_stride_head
        merge_parts(
            part_ptr,
            stat_ptr,
            target,
            output_stride_head,
            begin,
            num_parts,
            run,
            head % GROUP,
            1,
            GROUP,
            HEAD_DIM,
            TILE_DIM,
            TILE_PARTS,
        )
