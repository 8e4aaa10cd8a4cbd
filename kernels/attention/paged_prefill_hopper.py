"""The form of paged_prefill for Hopper's tensor cores, for 16-bit types.

One program computes 128 query rows of one head. One warp, the producer, brings tiles of keys and
values from the pool to shared memory, a block per copy. Two groups of four warps, the consumers,
take 64 rows each. A consumer has two products in flight, the scores of one tile and the values of
the tile before, and computes weights during the second; the other consumer fills what is left.
Tiles go from the last to the first, so only the first steps and, with a window, the last ones need
masks.

Written in Gluon, Triton's lower level: tl.dot does not leave two products in flight.
"""

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kernels.attention.hopper_tiles import produce, tile_offsets
from kernels.attention.prefill_plan import ITEM_FIELDS, PrefillPlan, padded_dim, panel_columns
from kernels.launching.repeated_launch import Launch

PART_ROWS = gl.constexpr(64)
"""query rows of one consumer: one warp group's share of a product"""
GROUP_ROWS = 8
"""positions that the descriptor of the pool counts as one"""


@gluon.jit
def soften(
    scores, peak, total, positions, tile, scale, window,
    MASK: gl.constexpr, TILE_KEYS: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    """Weights of one tile, and the running maximum and sum after it."""
    if MASK:
        keys = tile * TILE_KEYS + gl.arange(0, TILE_KEYS, gl.SliceLayout(0, layout))
        distance = positions[:, None] - keys[None, :]
        scores = gl.where((distance >= 0) & (distance < window), scores, float("-inf"))
    higher = gl.maximum(peak, gl.max(scores, 1))
    base = higher * scale
    if MASK:
        base = gl.where(higher == float("-inf"), 0.0, base)
    fade = gl.exp2(peak * scale - base)
    weights = gl.exp2(scores * scale - base[:, None])
    total = total * fade + gl.sum(weights, 1)
    return weights, higher, total, fade


@gluon.jit
def pack(wide, dtype: gl.constexpr):
    """Pairs of columns as one i32: 16-bit values would cross a loop in a register each."""
    even, odd = gl.split(gl.reshape(wide, [wide.shape[0], wide.shape[1] // 2, 2]))
    code: gl.constexpr = "bf16x2" if dtype == gl.bfloat16 else "f16x2"
    return gl.inline_asm_elementwise(
        "cvt.rn." + code + ".f32 $0, $1, $2;", "=r,r,r", [odd, even], gl.int32, True, 1
    )


@gluon.jit
def unpack(packed, dtype: gl.constexpr, layout: gl.constexpr):
    """The left operand of a product."""
    even = packed.to(gl.int16).to(dtype, bitcast=True)
    odd = (packed >> 16).to(gl.int16).to(dtype, bitcast=True)
    pairs = gl.join(even, odd)
    weights = gl.reshape(pairs, [packed.shape[0], packed.shape[1] * 2])
    return gl.convert_layout(weights, gl.DotOperandLayout(0, layout, 2), assert_trivial=True)


@gluon.jit
def descend(
    q_smem, k_smem, v_smem, ready_k, ready_v, free_k, free_v, tile, until, first_tile, end_tile,
    packed, mixed, peak, total, positions, scale, window,
    MASK: gl.constexpr, TILE_KEYS: gl.constexpr, STAGES: gl.constexpr,
    score_layout: gl.constexpr, mixed_layout: gl.constexpr,
):  # fmt: skip
    """Tiles down to `until`: each one's scores, whose keys are there, together with the
    values of the one before, whose weights are in `packed`."""
    while tile >= until:
        number = end_tile - 1 - tile
        stage = number % STAGES
        last_stage = (number - 1) % STAGES
        scores = gl.zeros([PART_ROWS, TILE_KEYS], gl.float32, score_layout)
        scores = warpgroup_mma(
            q_smem, k_smem.index(stage).permute((1, 0)), scores, use_acc=False, is_async=True
        )
        mbarrier.wait(ready_v.index(last_stage), (number - 1) // STAGES & 1)
        weights = unpack(packed, v_smem.dtype, mixed_layout)
        mixed = warpgroup_mma(weights, v_smem.index(last_stage), mixed, is_async=True)
        scores = warpgroup_mma_wait(1, deps=(scores,))
        mbarrier.arrive(free_k.index(stage))
        wide, peak, total, fade = soften(
            scores, peak, total, positions, tile, scale, window, MASK, TILE_KEYS, score_layout
        )
        # The assembler moves the second wait up to the first unless a branch, as in this one,
        # parts them: only then do the exponentials above run during the product.
        next_stage = (number + 1) % STAGES
        mbarrier.wait(ready_k.index(next_stage), (number + 1) // STAGES & 1, pred=tile > first_tile)
        mixed, wide = warpgroup_mma_wait(0, deps=(mixed, wide))
        mbarrier.arrive(free_v.index(last_stage))
        fade = gl.convert_layout(fade, gl.SliceLayout(1, mixed_layout))
        mixed = mixed * fade[:, None]
        packed = pack(wide, v_smem.dtype)
        tile -= 1
    return tile, packed, mixed, peak, total


@gluon.jit
def elements(
    row, num_rows, row_stride, HEAD_DIM: gl.constexpr, TILE_DIM: gl.constexpr, layout: gl.constexpr
):
    """Offsets of PART_ROWS rows of queries or results, and which of them there are."""
    rows = row + gl.arange(0, PART_ROWS, gl.SliceLayout(1, layout))
    columns = gl.arange(0, TILE_DIM, gl.SliceLayout(0, layout))
    at = rows.to(gl.int64)[:, None] * row_stride + columns[None, :]
    return at, (rows < num_rows)[:, None] & (columns < HEAD_DIM)[None, :]


@gluon.jit
def silence(v_tile, first_key, length, layout: gl.constexpr):
    """Zeros where a tile of values was never written: there may be NaN, and 0 * NaN is NaN. Both
    consumers may write here at once: they write the same bits."""
    keys = first_key + gl.arange(0, v_tile.shape[0], gl.SliceLayout(1, layout))
    values = v_tile.load(layout)
    v_tile.store(gl.where((keys < length)[:, None], values, 0.0))
    fence_async_shared()
    gl.thread_barrier()


@gluon.jit
def consume(
    q_ptr, output_ptr, q_smem, k_smem, v_smem, ready_k, ready_v, free_k, free_v,
    first_tile, end_tile, row, num_rows, length, q_row_stride, output_row_stride, scale, window,
    PART: gl.constexpr, HEAD_DIM: gl.constexpr, TILE_KEYS: gl.constexpr, TILE_DIM: gl.constexpr,
    STAGES: gl.constexpr, WINDOW: gl.constexpr,
):  # fmt: skip
    """One half of the rows. q_ptr and output_ptr: the head in the sequence's first row."""
    score_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TILE_KEYS, 16])
    mixed_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TILE_DIM, 16])
    wide_layout: gl.constexpr = gl.BlockedLayout(
        [1, 8], [256 // TILE_DIM, TILE_DIM // 8], [4, 1], [1, 0]
    )
    row += PART * PART_ROWS
    position = length - num_rows + row
    at, inside = elements(row, num_rows, q_row_stride, HEAD_DIM, TILE_DIM, wide_layout)
    q_smem.store(gl.load(q_ptr + at, inside, 0.0))
    fence_async_shared()
    gl.thread_barrier()

    per_row: gl.constexpr = gl.SliceLayout(1, score_layout)
    positions = position + gl.arange(0, PART_ROWS, per_row)
    tile = end_tile - 1
    mbarrier.wait(ready_k.index(0), 0)
    scores = gl.zeros([PART_ROWS, TILE_KEYS], gl.float32, score_layout)
    scores = warpgroup_mma(
        q_smem, k_smem.index(0).permute((1, 0)), scores, use_acc=False, is_async=True
    )
    scores = warpgroup_mma_wait(0, deps=(scores,))
    mbarrier.arrive(free_k.index(0))
    peak = gl.full([PART_ROWS], float("-inf"), gl.float32, per_row)
    total = gl.zeros([PART_ROWS], gl.float32, per_row)
    mixed = gl.zeros([PART_ROWS, TILE_DIM], gl.float32, mixed_layout)
    wide, peak, total, _ = soften(
        scores, peak, total, positions, tile, scale, window, True, TILE_KEYS, score_layout
    )
    packed = pack(wide, v_smem.dtype)
    if end_tile * TILE_KEYS > length:
        mbarrier.wait(ready_v.index(0), 0)
        silence(v_smem.index(0), tile * TILE_KEYS, length, wide_layout)

    # Tiles from `unmasked` on hold keys some row comes before, those left of `hidden` keys that
    # have left some row's window.
    unmasked = gl.maximum((position + 1) // TILE_KEYS, first_tile)
    hidden = first_tile
    if WINDOW:
        last_hidden = position + PART_ROWS - 1 - window
        hidden = gl.maximum((last_hidden + TILE_KEYS) // TILE_KEYS, first_tile)
    mbarrier.wait(ready_k.index(1 % STAGES), 1 // STAGES & 1, pred=tile > first_tile)
    tile, packed, mixed, peak, total = descend(
        q_smem, k_smem, v_smem, ready_k, ready_v, free_k, free_v, tile - 1, unmasked, first_tile,
        end_tile, packed, mixed, peak, total, positions, scale, window,
        True, TILE_KEYS, STAGES, score_layout, mixed_layout,
    )  # fmt: skip
    tile, packed, mixed, peak, total = descend(
        q_smem, k_smem, v_smem, ready_k, ready_v, free_k, free_v, tile, hidden, first_tile,
        end_tile, packed, mixed, peak, total, positions, scale, window,
        False, TILE_KEYS, STAGES, score_layout, mixed_layout,
    )  # fmt: skip
    if WINDOW:
        tile, packed, mixed, peak, total = descend(
            q_smem, k_smem, v_smem, ready_k, ready_v, free_k, free_v, tile, first_tile, first_tile,
            end_tile, packed, mixed, peak, total, positions, scale, window,
            True, TILE_KEYS, STAGES, score_layout, mixed_layout,
        )  # fmt: skip
    last = end_tile - 1 - first_tile
    mbarrier.wait(ready_v.index(last % STAGES), last // STAGES & 1)
    weights = unpack(packed, v_smem.dtype, mixed_layout)
    mixed = warpgroup_mma(weights, v_smem.index(last % STAGES), mixed, is_async=True)
    mixed = warpgroup_mma_wait(0, deps=(mixed,))
    total = gl.convert_layout(total, gl.SliceLayout(1, mixed_layout))
    q_smem.store((mixed / total[:, None]).to(q_smem.dtype))
    at, inside = elements(row, num_rows, output_row_stride, HEAD_DIM, TILE_DIM, wide_layout)
    gl.store(output_ptr + at, q_smem.load(wide_layout), inside)


@gluon.jit(do_not_specialize=["window", "section", "table_stride"])
def paged_prefill_hopper_kernel(
    q_ptr,
    table_ptr,
    item_ptr,
    output_ptr,
    layer_group,
    kv_desc,
    scale,
    window,
    section,
    q_row_stride,
    q_head_stride,
    output_row_stride,
    output_head_stride,
    table_stride,
    block_groups,
    NUM_KV_HEADS: gl.constexpr,
    GROUP: gl.constexpr,
    FIELDS: gl.constexpr,
    BLOCK_SIZE: gl.constexpr,
    HEAD_DIM: gl.constexpr,
    TILE_KEYS: gl.constexpr,
    TILE_DIM: gl.constexpr,
    STAGES: gl.constexpr,
    WINDOW: gl.constexpr,
):
    """Grid (items * section, heads / section). kv_desc: the pool as [groups of 8 positions, panels,
    8, columns of a panel]; a block has block_groups of them, its layer begins at layer_group.
    `scale` carries log2(e): weights are powers of two."""
    item = item_ptr + gl.program_id(0) // section * FIELDS
    head = gl.program_id(1) * section + gl.program_id(0) % section
    start = gl.load(item).to(gl.int64)
    num_rows = gl.load(item + 1)
    row = gl.load(item + 2)
    length = gl.load(item + 3)
    table = table_ptr + gl.load(item + 4).to(gl.int64) * table_stride
    position = length - num_rows + row
    first_key = gl.maximum(position - window + 1, 0)
    end_key = gl.minimum(position + 2 * PART_ROWS, length)
    first_tile = first_key // TILE_KEYS
    end_tile = (end_key + TILE_KEYS - 1) // TILE_KEYS
    q_ptr += start * q_row_stride + head * q_head_stride
    output_ptr += start * output_row_stride + head * output_head_stride

    q_layout: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    kv_layout: gl.constexpr = tile_offsets(TILE_KEYS, TILE_DIM, kv_desc.block_shape[3])
    barrier: gl.constexpr = mbarrier.MBarrierLayout()
    dtype: gl.constexpr = q_ptr.dtype.element_ty
    q_smem = gl.allocate_shared_memory(dtype, [2, PART_ROWS, TILE_DIM], q_layout)
    k_smem = gl.allocate_shared_memory(dtype, [STAGES, TILE_KEYS, TILE_DIM], kv_layout)
    v_smem = gl.allocate_shared_memory(dtype, [STAGES, TILE_KEYS, TILE_DIM], kv_layout)
    ready_k = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    ready_v = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    free_k = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    free_v = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    for stage in gl.static_range(STAGES):
        mbarrier.init(ready_k.index(stage), 1)
        mbarrier.init(ready_v.index(stage), 1)
        mbarrier.init(free_k.index(stage), 2)
        mbarrier.init(free_v.index(stage), 2)
    gl.warp_specialize(
        [
            (consume, (
                q_ptr, output_ptr, q_smem.index(0), k_smem, v_smem, ready_k, ready_v, free_k,
                free_v, first_tile, end_tile, row, num_rows, length, q_row_stride,
                output_row_stride, scale, window,
                0, HEAD_DIM, TILE_KEYS, TILE_DIM, STAGES, WINDOW,
            )),
            (consume, (
                q_ptr, output_ptr, q_smem.index(1), k_smem, v_smem, ready_k, ready_v, free_k,
                free_v, first_tile, end_tile, row, num_rows, length, q_row_stride,
                output_row_stride, scale, window,
                1, HEAD_DIM, TILE_KEYS, TILE_DIM, STAGES, WINDOW,
            )),
            (produce, (
                kv_desc, k_smem, v_smem, ready_k, ready_v, free_k, free_v, table, first_tile,
                end_tile, first_key // BLOCK_SIZE, (length - 1) // BLOCK_SIZE,
                layer_group + head // GROUP * (BLOCK_SIZE // 8), block_groups,
                NUM_KV_HEADS * BLOCK_SIZE // 8, BLOCK_SIZE, TILE_KEYS, TILE_DIM, STAGES,
            )),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip


def hopper_launch(
    plan: PrefillPlan,
    q: torch.Tensor,
    block_tables: torch.Tensor,
    output: torch.Tensor,
    kv_pool: torch.Tensor,
    scale: float,
) -> Launch:
    """Of paged_prefill's arguments, checked, over this very pool; `scale` carries log2(e). To be
    called with q, block tables, items and output."""
    num_kv_heads, block_size, head_dim = kv_pool.shape[3:]
    box, panel = min(block_size, plan.tile.num_keys), panel_columns(head_dim)
    kv_desc = TensorDescriptor(
        kv_pool,
        [kv_pool.numel() // head_dim // GROUP_ROWS, head_dim // panel, GROUP_ROWS, panel],
        [GROUP_ROWS * head_dim, panel, head_dim, 1],
        [box // GROUP_ROWS, padded_dim(head_dim) // panel, GROUP_ROWS, panel],
        gl.NVMMASharedLayout(2 * panel, 16, 4),
    )
    return Launch(
        paged_prefill_hopper_kernel,
        grid=(plan.items.shape[0] * plan.section, q.shape[1] // plan.section),
        numbers=(
            kv_desc,
            scale,
            plan.window_keys,
            plan.section,
            q.stride(0),
            q.stride(1),
            output.stride(0),
            output.stride(1),
            block_tables.stride(0),
            kv_pool.stride(0) // head_dim // GROUP_ROWS,
        ),
        constants={
            "NUM_KV_HEADS": num_kv_heads,
            "GROUP": q.shape[1] // num_kv_heads,
            "FIELDS": ITEM_FIELDS,
            "BLOCK_SIZE": block_size,
            "HEAD_DIM": head_dim,
            "TILE_KEYS": plan.tile.num_keys,
            "TILE_DIM": padded_dim(head_dim),
            "STAGES": plan.tile.num_stages,
            "WINDOW": plan.window > 0,
        },
        options={"num_warps": plan.tile.num_warps},
    )
