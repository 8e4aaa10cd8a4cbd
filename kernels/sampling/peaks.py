"""The largest logit of every row, and the token of rows that take just that."""

import triton
import triton.language as tl

from kernels.launching.overlap import follow
from kernels.sampling.weights import (
    ADJUSTED,
    COUNTS,
    FIELDS,
    GREEDY,
    KIND,
    MAX_SPLITS,
    choose,
    load_logits,
    row_peak,
)


@triton.jit
def peaks_kernel(
    logits_ptr,
    adjusted_ptr,
    row_ptr,
    peak_ptr,
    id_ptr,
    arrival_ptr,
    vocab_size,
    row_stride,
    split_size,
    THREADS: tl.constexpr,
    VECTOR: tl.constexpr,
    HAS_ADJUSTED: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Grid (rows, splits). Lowest id among equals; 0 where all are -inf."""
    follow(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    adjusted = -1
    if HAS_ADJUSTED:
        adjusted = tl.load(row_ptr + row * FIELDS + ADJUSTED).to(tl.int32)
    raw_ptr = logits_ptr + row * row_stride
    own_ptr = adjusted_ptr + adjusted.to(tl.int64) * vocab_size if HAS_ADJUSTED else adjusted_ptr
    begin = tl.minimum(split * split_size, vocab_size)  # an unrolled loop must not run backwards
    end = tl.minimum(begin + split_size, vocab_size)
    columns = tl.arange(0, THREADS)[:, None] * VECTOR + tl.arange(0, VECTOR)[None, :]
    best = tl.full([THREADS, VECTOR], float("-inf"), tl.float32)
    starts = tl.full([THREADS, VECTOR], 0, tl.int32) + begin
    for start in tl.range(begin, end, THREADS * VECTOR, loop_unroll_factor=4):
        at = start + columns
        logits = load_logits(raw_ptr, own_ptr, adjusted, at, at < end, HAS_ADJUSTED)
        better = logits > best
        best = tl.where(better, logits, best)
        starts = tl.where(better, start, starts)
    peak = tl.max(tl.max(best, 1), 0)
    ids = tl.where(best == peak, starts + columns, 2**30)
    tl.store(peak_ptr + row * MAX_SPLITS + split, peak)
    tl.store(id_ptr + row * MAX_SPLITS + split, tl.min(tl.min(ids, 1), 0))
    if split == 0:
        tl.store(arrival_ptr + row, 0)


@triton.jit(do_not_specialize=["num_splits"])
def likeliest_kernel(
    row_ptr,
    peak_ptr,
    id_ptr,
    count_ptr,
    output_ptr,
    vocab_size,
    num_splits,
    HAS_ROWS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Grid (rows,): the token of every greedy row; all are without a table of rows."""
    follow(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    counts = tl.full([], -1, tl.int64)
    kind = tl.full([], GREEDY, tl.int64)
    if HAS_ROWS:
        kind = tl.load(row_ptr + row * FIELDS + KIND)
        counts = tl.load(row_ptr + row * FIELDS + COUNTS)
    if kind == GREEDY:
        _, token_id = row_peak(peak_ptr, id_ptr, row, num_splits)
        choose(output_ptr, row, token_id, count_ptr, counts, vocab_size)
