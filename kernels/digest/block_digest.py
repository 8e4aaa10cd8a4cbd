"""A 64-bit digest of each KV block, or of a part of it, the same on every machine and device.

    digest = sum over words w[i] of mix(w[i] ^ mix((i + 1) * GOLDEN))   mod 2**64

`mix` is the finalizer of SplitMix64. A program for each block: short ones find room next to a step
that runs at the same time, while few long ones keep a multiprocessor from it (a prefill of 8,192
tokens takes 0.5 % longer instead of 2 %).
"""

import torch
import triton
import triton.language as tl

from kernels.launching.launch import check_same_device

WORD_BYTES = 8
TILE_WORDS = 2048
NUM_WARPS = 8


@triton.jit
def _mix(x):
    x = (x ^ (x >> 30)) * tl.full((), 0xBF58476D1CE4E5B9, tl.uint64)
    x = (x ^ (x >> 27)) * tl.full((), 0x94D049BB133111EB, tl.uint64)
    return x ^ (x >> 31)


@triton.jit
def block_digest_kernel(
    pool_ptr,
    block_ptr,
    output_ptr,
    num_words,
    STRIDE: tl.constexpr,
    TILE_WORDS: tl.constexpr,
):
    """Grid (blocks,)."""
    number = tl.program_id(0)
    words_ptr = pool_ptr + tl.load(block_ptr + number) * STRIDE
    total = tl.zeros((TILE_WORDS,), tl.uint64)
    for start in range(0, num_words, TILE_WORDS):
        at = start + tl.arange(0, TILE_WORDS)
        inside = at < num_words
        words = tl.load(words_ptr + at, inside, other=0).to(tl.uint64, bitcast=True)
        key = _mix((at + 1).to(tl.uint64) * tl.full((), 0x9E3779B97F4A7C15, tl.uint64))
        total += tl.where(inside, _mix(words ^ key), tl.zeros((), tl.uint64))
    tl.store(output_ptr + number, tl.sum(total, 0).to(tl.int64, bitcast=True))


def block_digests(pool: torch.Tensor, block_ids: torch.Tensor, output: torch.Tensor) -> None:
    """Write the digests of blocks i64[n] of the pool u8[num_blocks, bytes] into `output` i64[n],
    whose bits are the unsigned value. The pool's rows may be the same part of each block.
    ValueError or TypeError for what does not fit."""
    if pool.dtype != torch.uint8 or pool.dim() != 2 or pool.stride(1) != 1:
        raise TypeError(f"pool {tuple(pool.shape)} of {pool.dtype} is not u8[num_blocks, bytes]")
    if pool.shape[1] % WORD_BYTES or pool.stride(0) % WORD_BYTES or pool.data_ptr() % WORD_BYTES:
        raise ValueError(f"{pool.shape[1]} bytes of a block are no whole words of {WORD_BYTES}")
    if block_ids.dtype != torch.int64 or output.dtype != torch.int64:
        raise TypeError(f"block_ids {block_ids.dtype}, output {output.dtype}: need int64")
    if block_ids.shape != output.shape or block_ids.dim() != 1:
        raise ValueError(f"{tuple(block_ids.shape)} blocks, {tuple(output.shape)} digests")
    check_same_device(pool, block_ids, output)
    if not output.shape[0]:
        return
    block_digest_kernel[(output.shape[0],)](
        pool.view(torch.int64),
        block_ids,
        output,
        pool.shape[1] // WORD_BYTES,
        STRIDE=pool.stride(0) // WORD_BYTES,
        TILE_WORDS=TILE_WORDS,
        num_warps=NUM_WARPS,
    )
