"""Weights of tokens as integers, and keys that order them: what all sampling kernels share.

A weight is floor(exp((logit - peak) / T) * 2**40), so it is an f32 times a power of two below
2**40 and has at most 24 significant bits. Its key is a smaller integer that determines it and
orders like it: the weight itself up to 2**24, beyond that mantissa and exponent as in a float.
Sums of weights are exact in 64 bits, in any order.
"""

import triton
import triton.language as tl

from kernels.sampling import rows

FIELDS = tl.constexpr(rows.FIELDS)
KIND = tl.constexpr(rows.KIND)
SEED = tl.constexpr(rows.SEED)
POSITION = tl.constexpr(rows.POSITION)
TEMPERATURE = tl.constexpr(rows.TEMPERATURE)
LEAST_KEY = tl.constexpr(rows.LEAST_KEY)
ADJUSTED = tl.constexpr(rows.ADJUSTED)
COUNTS = tl.constexpr(rows.COUNTS)
GREEDY = tl.constexpr(rows.GREEDY)
PLAIN = tl.constexpr(rows.PLAIN)
ORDERED = tl.constexpr(rows.ORDERED)
MAX_SPLITS = tl.constexpr(rows.MAX_SPLITS)
CHUNK = tl.constexpr(rows.CHUNK)

LOG2_E = tl.constexpr(1.4426950408889634)
WEIGHT_ONE = tl.constexpr(rows.WEIGHT_ONE)
LARGEST_KEY = tl.constexpr(18 * 2**23)
"""of weight 2**40"""
FIRST_FLOAT = tl.constexpr(8388608.0)
"""from here on a key is mantissa and exponent; up to twice that both forms agree"""
FLOAT_OFFSET = tl.constexpr(0x4B000000 - 2**23)
"""bits of FIRST_FLOAT minus its key"""
GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)
MIX_1 = tl.constexpr(0xBF58476D1CE4E5B9)
MIX_2 = tl.constexpr(0x94D049BB133111EB)


@triton.jit
def float_field(entry):
    """An f32 from its bits in an i64 field."""
    return tl.load(entry).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def key_scale(entry):
    """What keys_of multiplies with, of a row's temperature."""
    return LOG2_E / float_field(entry + TEMPERATURE)


@triton.jit
def load_logits(raw_ptr, adjusted_ptr, adjusted, at, inside, HAS_ADJUSTED: tl.constexpr):
    """f32 logits of one row, -inf outside: the adjusted ones if that is not negative."""
    if HAS_ADJUSTED:
        raw = tl.load(raw_ptr + at, inside & (adjusted < 0), other=float("-inf"))
        changed = tl.load(adjusted_ptr + at, inside & (adjusted >= 0), other=float("-inf"))
        return tl.where(adjusted < 0, raw.to(tl.float32), changed)
    return tl.load(raw_ptr + at, inside, other=float("-inf")).to(tl.float32)


@triton.jit
def row_peak(peak_ptr, id_ptr, row, num_splits):
    """The largest logit of a row and the lowest id that has it, from the parts of peaks_kernel."""
    splits = tl.arange(0, MAX_SPLITS)
    at = row * MAX_SPLITS + splits
    peaks = tl.load(peak_ptr + at, splits < num_splits, other=float("-inf"))
    ids = tl.load(id_ptr + at, splits < num_splits, other=2**30)
    peak = tl.max(peaks, 0)
    return peak, tl.min(tl.where(peaks == peak, ids, 2**30), 0)


@triton.jit
def keys_of(logits, peak, scale):
    """i32 keys of the weights; `scale` is log2(e) / T."""
    weights = tl.exp2((logits - peak) * scale) * WEIGHT_ONE
    small = tl.where(weights < FIRST_FLOAT, weights, 0.0).to(tl.int32)
    large = weights.to(tl.int32, bitcast=True) - FLOAT_OFFSET
    return tl.where(weights >= FIRST_FLOAT, large, small)


@triton.jit
def weights_of(keys):
    """i64 weights of i32 keys."""
    shifts = tl.maximum((keys >> 23) - 1, 0)
    return (keys - (shifts << 23)).to(tl.int64) << shifts.to(tl.int64)


@triton.jit
def mixed(bits):
    bits = (bits ^ (bits >> 30)) * MIX_1
    bits = (bits ^ (bits >> 27)) * MIX_2
    return bits ^ (bits >> 31)


@triton.jit
def drawn_mark(seed, position, total):
    """The i64 in [0, total) that the draw of (seed, position) picks (SplitMix64 as a counter)."""
    start = mixed(seed.to(tl.uint64, bitcast=True) + GOLDEN)
    bits = mixed(start + (position + 1).to(tl.uint64, bitcast=True) * GOLDEN)
    share = (bits >> 11).to(tl.float64) * 1.1102230246251565e-16
    return tl.minimum((share * total.to(tl.float64)).to(tl.int64), total - 1)


@triton.jit
def draw_in(entry, total):
    """The i64 in [0, total) that a row's draw picks, -1 if that is empty."""
    return drawn_mark(tl.load(entry + SEED), tl.load(entry + POSITION), total)


@triton.jit
def choose(output_ptr, row, token_id, count_ptr, counts, vocab_size):
    """Write the row's token, and count it where the row has a row of counts."""
    tl.store(output_ptr + row, token_id.to(tl.int64))
    if counts >= 0:
        cell = count_ptr + counts * vocab_size + token_id
        tl.store(cell, tl.maximum(tl.load(cell), 1) + 1)
