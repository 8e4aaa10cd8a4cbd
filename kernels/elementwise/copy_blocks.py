"""Copies of whole KV blocks between the pool and one contiguous tensor, for transfer.

Neighbouring layers of a block lie side by side in the pool, so a block is one run of bytes on both
sides and all blocks are one launch. Bytes move as words of 8, two at a time where addresses allow,
whatever the dtype.

Pool: [num_blocks, num_layers, 2, num_kv_heads, block_size, head_dim], contiguous.
"""

import torch
import triton
import triton.language as tl

from kernels.launching.launch import ceil_div, check_pool, check_same_device, overlap_options
from kernels.launching.overlap import follow

WORD_BYTES = 8
TILE_WORDS = 2048
"""one program copies: 16 KiB"""
NUM_WARPS = 4


@triton.jit(do_not_specialize=["num_tiles"])
def copy_blocks_kernel(
    pool_ptr,
    block_ptr,
    packed_ptr,
    block_stride,
    layer_offset,
    num_words,
    num_tiles,
    GATHER: tl.constexpr,
    TILE_WORDS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Grid (blocks x tiles,). All lengths are in words: `num_words` of a block are copied, from
    `layer_offset` on, in `num_tiles` tiles."""
    follow(OVERLAP)
    number = (tl.program_id(0) // num_tiles).to(tl.int64)
    words = tl.program_id(0) % num_tiles * TILE_WORDS + tl.arange(0, TILE_WORDS)
    inside = words < num_words
    block = tl.load(block_ptr + number).to(tl.int64)
    pool_at = pool_ptr + block * block_stride + layer_offset + words
    packed_at = packed_ptr + number * num_words + words
    if GATHER:
        tl.store(packed_at, tl.load(pool_at, inside), inside)
    else:
        tl.store(pool_at, tl.load(packed_at, inside), inside)


def gather_blocks(
    kv_pool: torch.Tensor,
    block_ids: torch.Tensor,
    layers: tuple[int, int],
    output: torch.Tensor,
    *,
    overlap: bool = False,
) -> None:
    """Write blocks i32[n] or i64[n] of the pool into `output` [n, count, 2, num_kv_heads,
    block_size, head_dim], layers = (first, count).

    `output` is contiguous and may be any memory the pool's GPU can write: its own, another GPU's
    with peer access, or pinned. `overlap` (sm_90 and later) lets the launch begin while the kernel
    before still runs. ValueError or TypeError for what does not fit.
    """
    _launch(kv_pool, block_ids, layers, output, gather=True, overlap=overlap)


def scatter_blocks(
    packed: torch.Tensor,
    kv_pool: torch.Tensor,
    block_ids: torch.Tensor,
    layers: tuple[int, int],
    *,
    overlap: bool = False,
) -> None:
    """Write `packed`, which is what gather_blocks left, into blocks of the pool. A block may be
    named once only."""
    _launch(kv_pool, block_ids, layers, packed, gather=False, overlap=overlap)


def _launch(
    kv_pool: torch.Tensor,
    block_ids: torch.Tensor,
    layers: tuple[int, int],
    packed: torch.Tensor,
    *,
    gather: bool,
    overlap: bool,
) -> None:
    _check(kv_pool, block_ids, layers, packed)
    first, count = layers
    if packed.numel() == 0:
        return
    layer_words = kv_pool.stride(1) * kv_pool.element_size() // WORD_BYTES
    num_tiles = ceil_div(count * layer_words, TILE_WORDS)
    copy_blocks_kernel[(block_ids.shape[0] * num_tiles,)](
        kv_pool.view(torch.int64),
        block_ids,
        packed.view(torch.int64),
        kv_pool.shape[1] * layer_words,
        first * layer_words,
        count * layer_words,
        num_tiles,
        GATHER=gather,
        TILE_WORDS=TILE_WORDS,
        OVERLAP=overlap,
        num_warps=NUM_WARPS,
        **overlap_options(overlap),
    )


def _check(
    kv_pool: torch.Tensor, block_ids: torch.Tensor, layers: tuple[int, int], packed: torch.Tensor
) -> None:
    first, count = layers
    check_pool(kv_pool)
    if first < 0 or count < 0 or first + count > kv_pool.shape[1]:
        raise ValueError(f"{count} layers from {first} of {kv_pool.shape[1]}")
    if block_ids.dim() != 1 or not block_ids.is_contiguous():
        raise ValueError(f"block_ids {tuple(block_ids.shape)} is not a contiguous list")
    if block_ids.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"block_ids is {block_ids.dtype}, need int32 or int64")
    wanted = (block_ids.shape[0], count, *kv_pool.shape[2:])
    if packed.shape != wanted or not packed.is_contiguous():
        raise ValueError(f"packed {tuple(packed.shape)}, need a contiguous {wanted}")
    if packed.dtype != kv_pool.dtype:
        raise TypeError(f"packed {packed.dtype}, kv_pool {kv_pool.dtype} must be one dtype")
    if kv_pool.shape[-1] * kv_pool.element_size() % WORD_BYTES:
        raise ValueError(f"head_dim {kv_pool.shape[-1]} is no multiple of {WORD_BYTES} bytes")
    check_same_device(kv_pool, block_ids)
