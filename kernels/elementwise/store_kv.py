"""Scatter new K and V rows into the paged pool.

Pool: [num_blocks, num_layers, 2, num_kv_heads, block_size, head_dim], contiguous. One program
copies K and V of one token for a few heads; a row of head_dim elements stays contiguous on both
sides. Slots are int64 throughout: block_id * stride passes 2**31 elements in a pool of 8 GiB.
"""

import torch
import triton
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction

from kernels.launching.launch import (
    ceil_div,
    check_interpretable,
    check_pool,
    check_same_device,
    layer_offset,
    num_warps,
    store_kv_tile,
)


@triton.jit
def store_kv_kernel(
    k_ptr,
    v_ptr,
    pool_ptr,
    slot_ptr,
    k_stride_token,
    k_stride_head,
    v_stride_token,
    v_stride_head,
    block_stride,
    layer_offset,
    plane_stride,
    head_stride,
    NUM_HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TILE_HEADS: tl.constexpr,
    TILE_DIM: tl.constexpr,
):
    """Grid (tokens, head tiles). `layer_offset` is the element where the layer begins in a
    block; strides are in elements."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_ptr + token)
    if slot < 0:
        return
    heads = tl.program_id(1) * TILE_HEADS + tl.arange(0, TILE_HEADS)[:, None]
    columns = tl.arange(0, TILE_DIM)[None, :]
    inside = (heads < NUM_HEADS) & (columns < HEAD_DIM)
    heads = heads.to(tl.int64)

    block = slot // BLOCK_SIZE
    offset = slot % BLOCK_SIZE
    target = pool_ptr + block * block_stride + layer_offset + offset * HEAD_DIM
    target = target + heads * head_stride + columns

    k = tl.load(k_ptr + token * k_stride_token + heads * k_stride_head + columns, mask=inside)
    v = tl.load(v_ptr + token * v_stride_token + heads * v_stride_head + columns, mask=inside)
    tl.store(target, k.to(pool_ptr.dtype.element_ty), mask=inside)
    tl.store(target + plane_stride, v.to(pool_ptr.dtype.element_ty), mask=inside)


def store_kv(
    k: torch.Tensor,
    v: torch.Tensor,
    kv_pool: torch.Tensor,
    layer: int,
    slot_mapping: torch.Tensor,
) -> None:
    """Write k, v [T, num_kv_heads, head_dim] into slots i64[T] of one layer; -1 skips a row.

    Rows of k and v may be strided views (slices of a fused projection); head_dim must be
    contiguous. ValueError or TypeError on a shape, stride, dtype or device that does not fit.
    """
    _check(k, v, kv_pool, slot_mapping)
    offset = layer_offset(kv_pool, layer)
    num_tokens, num_heads, head_dim = k.shape
    if num_tokens == 0:
        return
    tile_heads, tile_dim = store_kv_tile(num_heads, head_dim)
    grid = (num_tokens, ceil_div(num_heads, tile_heads))
    store_kv_kernel[grid](
        k,
        v,
        kv_pool,
        slot_mapping,
        k.stride(0),
        k.stride(1),
        v.stride(0),
        v.stride(1),
        kv_pool.stride(0),
        offset,
        kv_pool.stride(2),
        kv_pool.stride(3),
        NUM_HEADS=num_heads,
        BLOCK_SIZE=kv_pool.shape[4],
        HEAD_DIM=head_dim,
        TILE_HEADS=tile_heads,
        TILE_DIM=tile_dim,
        num_warps=num_warps(tile_heads * tile_dim),
    )


def _check(
    k: torch.Tensor,
    v: torch.Tensor,
    kv_pool: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    check_pool(kv_pool)
    if k.shape != v.shape or k.shape[1:] != (kv_pool.shape[3], kv_pool.shape[5]):
        raise ValueError(f"k {tuple(k.shape)}, v {tuple(v.shape)} do not fit {kv_pool.shape}")
    if k.stride(2) != 1 or v.stride(2) != 1:
        raise ValueError("head_dim of k and v must be contiguous")
    if slot_mapping.shape != k.shape[:1] or not slot_mapping.is_contiguous():
        raise ValueError(f"slot_mapping {tuple(slot_mapping.shape)} for {k.shape[0]} tokens")
    if slot_mapping.dtype is not torch.int64:
        raise TypeError(f"slot_mapping is {slot_mapping.dtype}, need int64")
    if not k.dtype == v.dtype == kv_pool.dtype:
        raise TypeError(f"k {k.dtype}, v {v.dtype}, kv_pool {kv_pool.dtype} must be one dtype")
    check_same_device(k, v, kv_pool, slot_mapping)
    if isinstance(store_kv_kernel, InterpretedFunction):
        check_interpretable(k, v, kv_pool)
