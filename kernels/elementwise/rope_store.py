"""Everything between the fused projection and attention: the norm of each query and key head where
a model has one, rotation by position, and the store of K and V into the paged pool.

One program takes a few neighbouring heads of one token, of whatever kind; a head's two halves lie
side by side in its registers, so a pair needs no exchange. All arithmetic is in float32 and each
element is rounded once.

Pool: [num_blocks, num_layers, 2, num_kv_heads, block_size, head_dim], contiguous.
"""

import torch
import triton
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction

from kernels.launching.known_launches import KnownLaunches
from kernels.launching.launch import (
    ceil_div,
    check_interpretable,
    check_pool,
    check_same_device,
    layer_offset,
    next_power_of_two,
    overlap_options,
)
from kernels.launching.overlap import follow
from kernels.launching.repeated_launch import Launch

MAX_ELEMENTS = 1024
"""of one program"""
LAUNCHES = KnownLaunches()


@triton.jit
def rope_store_kernel(
    qkv_ptr,
    cos_ptr,
    sin_ptr,
    position_ptr,
    slot_ptr,
    norm_ptr,
    pool_ptr,
    query_ptr,
    layer_offset,
    eps,
    qkv_stride,
    query_stride_token,
    query_stride_head,
    norm_stride,
    block_stride,
    head_stride,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TILE_HEADS: tl.constexpr,
    TILE_HALF: tl.constexpr,
    NORM: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Grid (tokens x head tiles,). `layer_offset` is the element where the layer begins in a
    block; strides are in elements. Heads are numbered queries first, then keys, then values."""
    HALF: tl.constexpr = HEAD_DIM // 2
    ALL_HEADS: tl.constexpr = NUM_HEADS + 2 * NUM_KV_HEADS
    TILES: tl.constexpr = (ALL_HEADS + TILE_HEADS - 1) // TILE_HEADS
    token = (tl.program_id(0) // TILES).to(tl.int64)
    heads = tl.program_id(0) % TILES * TILE_HEADS + tl.arange(0, TILE_HEADS)[:, None]
    columns = tl.arange(0, TILE_HALF)[None, :]
    real = columns < HALF
    inside = (heads < ALL_HEADS) & real
    turned = heads < NUM_HEADS + NUM_KV_HEADS

    position = tl.load(position_ptr + token)
    slot = tl.load(slot_ptr + token)
    # Every head reads them for itself: one row for all would be passed on through shared memory.
    angle_at = position * HALF + tl.broadcast_to(columns, [TILE_HEADS, TILE_HALF])
    cos = tl.load(cos_ptr + angle_at, real, other=0.0)
    sin = tl.load(sin_ptr + angle_at, real, other=0.0)
    if NORM:
        weight_at = norm_ptr + heads * norm_stride + columns
        first_weight = tl.load(weight_at, turned & real, other=0.0).to(tl.float32)
        second_weight = tl.load(weight_at + HALF, turned & real, other=0.0).to(tl.float32)
    follow(OVERLAP)  # so far nothing was read that the kernel before this one may write

    head_at = qkv_ptr + token * qkv_stride + heads * HEAD_DIM + columns
    first = tl.load(head_at, inside, other=0.0)
    second = tl.load(head_at + HALF, inside, other=0.0)
    x, y = first.to(tl.float32), second.to(tl.float32)
    if NORM:
        scale = tl.rsqrt(tl.sum(x * x + y * y, 1) / HEAD_DIM + eps)[:, None]
        x = x * scale * first_weight
        y = y * scale * second_weight
    first = tl.where(turned, (x * cos - y * sin).to(first.dtype), first)
    second = tl.where(turned, (y * cos + x * sin).to(second.dtype), second)

    asked = inside & (heads < NUM_HEADS)
    query_at = query_ptr + token * query_stride_token + heads * query_stride_head + columns
    tl.store(query_at, first, asked)
    tl.store(query_at + HALF, second, asked)
    kept = inside & (heads >= NUM_HEADS) & (slot >= 0)
    start = slot // BLOCK_SIZE * block_stride + layer_offset + slot % BLOCK_SIZE * HEAD_DIM
    # Values follow the keys in the pool as they do here: one stride serves both.
    pool_at = pool_ptr + start + (heads - NUM_HEADS) * head_stride + columns
    tl.store(pool_at, first, kept)
    tl.store(pool_at + HALF, second, kept)


def rope_store(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    slot_mapping: torch.Tensor,
    kv_pool: torch.Tensor,
    layer: int,
    queries: torch.Tensor,
    *,
    qk_norm: torch.Tensor | None = None,
    eps: float = 0.0,
    overlap: bool = False,
) -> None:
    """Rotate queries and keys of qkv [T, (H + 2 Hkv) * D], store K and V, write the queries.

    Rows of qkv hold all query heads, then keys, then values. Pair (i, i + D / 2) of a head turns
    by the angle of cos and sin f32[max_positions, D / 2] at positions i64[T]. K and V go to slots
    i64[T] of a layer, -1 stores none; queries to [T, H, D], maybe a view of qkv. With qk_norm
    [H + Hkv, D] queries and keys are first normed by head and multiplied by its row.

    With `overlap` (sm_90 and later) only qkv may be what the kernel before writes: the rest is read
    while that still runs. ValueError or TypeError for what does not fit; rows may be strided.
    """
    norm = cos if qk_norm is None else qk_norm
    tensors = (qkv, cos, sin, positions, slot_mapping, norm, kv_pool, queries)
    launch = LAUNCHES.find(_launch, tensors, qk_norm is not None, eps, overlap)
    launch(*tensors, offset=layer_offset(kv_pool, layer))


def rope_store_tile(num_heads: int, head_dim: int) -> tuple[int, int, int]:
    """(heads, elements of half a head, warps) of one program; the first two are powers of two."""
    half = next_power_of_two(head_dim // 2)
    heads = min(next_power_of_two(num_heads), max(1, MAX_ELEMENTS // (2 * half)))
    return heads, half, min(8, max(1, heads * half // 256))


def _launch(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    slot_mapping: torch.Tensor,
    norm: torch.Tensor,
    kv_pool: torch.Tensor,
    queries: torch.Tensor,
    has_norm: bool,
    eps: float,
    overlap: bool,
) -> Launch:
    _check(qkv, kv_pool, queries, norm if has_norm else None)
    _check_tables((cos, sin), positions, slot_mapping, queries)
    num_tokens, num_heads, head_dim = queries.shape
    num_kv_heads = kv_pool.shape[3]
    all_heads = num_heads + 2 * num_kv_heads
    tile_heads, tile_half, num_warps = rope_store_tile(all_heads, head_dim)
    return Launch(
        rope_store_kernel,
        grid=(num_tokens * ceil_div(all_heads, tile_heads),),
        numbers=(
            eps,
            qkv.stride(0),
            queries.stride(0),
            queries.stride(1),
            norm.stride(0) if has_norm else 0,
            kv_pool.stride(0),
            kv_pool.stride(3),
        ),
        constants={
            "NUM_HEADS": num_heads,
            "NUM_KV_HEADS": num_kv_heads,
            "BLOCK_SIZE": kv_pool.shape[4],
            "HEAD_DIM": head_dim,
            "TILE_HEADS": tile_heads,
            "TILE_HALF": tile_half,
            "NORM": has_norm,
            "OVERLAP": overlap,
        },
        options={"num_warps": num_warps, **overlap_options(overlap)},
    )


def _check(
    qkv: torch.Tensor,
    kv_pool: torch.Tensor,
    queries: torch.Tensor,
    qk_norm: torch.Tensor | None,
) -> None:
    check_pool(kv_pool)
    num_kv_heads, _, head_dim = kv_pool.shape[3:]
    if queries.dim() != 3 or queries.shape[2] != head_dim or head_dim % 2:
        raise ValueError(f"queries {tuple(queries.shape)} for heads of {head_dim}, even")
    width = (queries.shape[1] + 2 * num_kv_heads) * head_dim
    if qkv.shape != (queries.shape[0], width):
        raise ValueError(f"qkv {tuple(qkv.shape)}, need {(queries.shape[0], width)}")
    if qkv.stride(1) != 1 or queries.stride(2) != 1:
        raise ValueError("rows of qkv and heads of queries must be contiguous")
    if not qkv.dtype == kv_pool.dtype == queries.dtype:
        raise TypeError(
            f"qkv {qkv.dtype}, kv_pool {kv_pool.dtype}, queries {queries.dtype} must be one dtype"
        )
    check_same_device(qkv, kv_pool, queries)
    _check_norm(qk_norm, queries, num_kv_heads)
    if isinstance(rope_store_kernel, InterpretedFunction):
        check_interpretable(qkv)


def _check_tables(
    tables: tuple[torch.Tensor, torch.Tensor],
    positions: torch.Tensor,
    slot_mapping: torch.Tensor,
    queries: torch.Tensor,
) -> None:
    for table in tables:
        if table.dim() != 2 or table.shape[1] != queries.shape[2] // 2 or not table.is_contiguous():
            raise ValueError(f"table {tuple(table.shape)} for heads of {queries.shape[2]}")
        if table.dtype is not torch.float32:
            raise TypeError(f"cos or sin is {table.dtype}, need float32")
    for numbers in (positions, slot_mapping):
        if numbers.shape != queries.shape[:1] or not numbers.is_contiguous():
            raise ValueError(f"{tuple(numbers.shape)} numbers for {queries.shape[0]} tokens")
        if numbers.dtype is not torch.int64:
            raise TypeError(f"positions or slot_mapping is {numbers.dtype}, need int64")
    check_same_device(queries, positions, slot_mapping, *tables)


def _check_norm(qk_norm: torch.Tensor | None, queries: torch.Tensor, num_kv_heads: int) -> None:
    if qk_norm is None:
        return
    wanted = (queries.shape[1] + num_kv_heads, queries.shape[2])
    if qk_norm.shape != wanted or qk_norm.stride(1) != 1:
        raise ValueError(f"qk_norm {tuple(qk_norm.shape)}, need {wanted}")
    if qk_norm.dtype != queries.dtype:
        raise TypeError(f"qk_norm {qk_norm.dtype}, queries {queries.dtype} must be one dtype")
    check_same_device(queries, qk_norm)
