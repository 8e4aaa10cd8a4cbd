"""A draw in proportion to the weights, in the order of token ids: temperature and min_p only.

One kernel adds up the weights of every chunk, the next finds the chunk the mark falls into and
the token in it.
"""

import triton
import triton.language as tl

from kernels.launching.overlap import follow
from kernels.sampling.weights import (
    ADJUSTED,
    CHUNK,
    COUNTS,
    FIELDS,
    KIND,
    LEAST_KEY,
    PLAIN,
    choose,
    draw_in,
    key_scale,
    keys_of,
    load_logits,
    row_peak,
    weights_of,
)


@triton.jit
def chunk_weights(
    raw_ptr,
    own_ptr,
    adjusted,
    start,
    vocab_size,
    peak,
    scale,
    least_key,
    HAS_ADJUSTED: tl.constexpr,
):
    """i64[CHUNK] from token `start` on; 0 for what min_p leaves out."""
    at = start + tl.arange(0, CHUNK)
    inside = at < vocab_size
    logits = load_logits(raw_ptr, own_ptr, adjusted, at, inside, HAS_ADJUSTED)
    keys = keys_of(logits, peak, scale)
    return tl.where(inside & (keys >= least_key), weights_of(keys), 0)


@triton.jit(do_not_specialize=["num_splits", "num_chunks", "chunks_each"])
def masses_kernel(
    logits_ptr,
    adjusted_ptr,
    row_ptr,
    peak_ptr,
    id_ptr,
    sum_ptr,
    vocab_size,
    row_stride,
    num_splits,
    num_chunks,
    chunks_each,
    MAX_CHUNKS: tl.constexpr,
    HAS_ADJUSTED: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Grid (rows, programs of `chunks_each` chunks): sums of the weights of each chunk."""
    follow(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    entry = row_ptr + row * FIELDS
    if tl.load(entry + KIND) != PLAIN:
        return
    adjusted = tl.load(entry + ADJUSTED)
    least_key = tl.load(entry + LEAST_KEY).to(tl.int32)
    scale = key_scale(entry)
    peak, _ = row_peak(peak_ptr, id_ptr, row, num_splits)
    raw_ptr = logits_ptr + row * row_stride
    own_ptr = adjusted_ptr + adjusted * vocab_size
    first = tl.program_id(1) * chunks_each
    for chunk in range(first, tl.minimum(first + chunks_each, num_chunks)):
        weights = chunk_weights(
            raw_ptr,
            own_ptr,
            adjusted,
            chunk * CHUNK,
            vocab_size,
            peak,
            scale,
            least_key,
            HAS_ADJUSTED,
        )
        tl.store(sum_ptr + row * MAX_CHUNKS + chunk, tl.sum(weights, 0))


@triton.jit(do_not_specialize=["num_splits", "num_chunks"])
def draw_kernel(
    logits_ptr,
    adjusted_ptr,
    row_ptr,
    peak_ptr,
    id_ptr,
    sum_ptr,
    count_ptr,
    output_ptr,
    vocab_size,
    row_stride,
    num_splits,
    num_chunks,
    MAX_CHUNKS: tl.constexpr,
    HAS_ADJUSTED: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Grid (rows,): the first token whose running sum passes the mark."""
    follow(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    entry = row_ptr + row * FIELDS
    if tl.load(entry + KIND) != PLAIN:
        return
    chunks = tl.arange(0, MAX_CHUNKS)
    sums = tl.load(sum_ptr + row * MAX_CHUNKS + chunks, chunks < num_chunks, other=0)
    ends = tl.cumsum(sums, 0)
    total = tl.sum(sums, 0)
    mark = draw_in(entry, total)
    passed = tl.sum((ends <= mark).to(tl.int32), 0)
    before = tl.max(tl.where(ends <= mark, ends, 0), 0)
    start = tl.minimum(passed, num_chunks - 1) * CHUNK

    adjusted = tl.load(entry + ADJUSTED)
    peak, _ = row_peak(peak_ptr, id_ptr, row, num_splits)
    weights = chunk_weights(
        logits_ptr + row * row_stride,
        adjusted_ptr + adjusted * vocab_size,
        adjusted,
        start,
        vocab_size,
        peak,
        key_scale(entry),
        tl.load(entry + LEAST_KEY).to(tl.int32),
        HAS_ADJUSTED,
    )
    inside = tl.sum((before + tl.cumsum(weights, 0) <= mark).to(tl.int32), 0)
    token_id = tl.minimum(start + inside, vocab_size - 1)
    counts = tl.load(entry + COUNTS)
    choose(output_ptr, row, token_id, count_ptr, counts, vocab_size)
