"""A draw in the order of weights, the likeliest first and of equals the lowest id: top-k, top-p
and min_p, without sorting anything.

Everything asked is where a running sum over that order reaches some number: the k-th token, the
first token at which the share p is reached, the token of the mark. A search by keys answers it:
one pass over the row adds up what lies at or above each of eight keys, and the next pass looks
between two of them. What lies above is known exactly, so only among the tokens that share the
drawn one's weight do ids matter. Once few tokens are left at or above what is looked for, they are
listed, and later passes read the list.

Programs that share a row add their sums up through global memory and wait for each other, pass
by pass; each then takes the same turn.
"""

import triton
import triton.language as tl

from kernels.launching.overlap import follow
from kernels.sampling import rows
from kernels.sampling.weights import (
    ADJUSTED,
    CHUNK,
    COUNTS,
    FIELDS,
    KIND,
    LARGEST_KEY,
    LEAST_KEY,
    MAX_SPLITS,
    ORDERED,
    choose,
    draw_in,
    key_scale,
    keys_of,
    load_logits,
    row_peak,
    weights_of,
)

TOP_K = tl.constexpr(rows.TOP_K)
TOP_P = tl.constexpr(rows.TOP_P)
PIVOTS = tl.constexpr(rows.NUM_PIVOTS)
PART_FIELDS = tl.constexpr(rows.PART_FIELDS)
MAX_LIVE = tl.constexpr(rows.MAX_LIVE)
GRAIN = tl.constexpr(rows.GRAIN)

NUMBER = tl.constexpr(0)
"""what a pass is for: the key of the k-th token, by numbers instead of weights"""
MASS = tl.constexpr(1)
"""the weight of what top-k left; this pass also serves as the first of the two searches below"""
SHARE = tl.constexpr(2)
"""the token at which top-p's share is reached"""
LEAST = tl.constexpr(3)
"""the weight of what min_p leaves"""
MARK = tl.constexpr(4)
"""the token of the mark"""
TIES = tl.constexpr(5)
"""how many tokens of its key the programs before have"""
DONE = tl.constexpr(6)


@triton.jit
def keys_at(source, listed, end, at, HAS_ADJUSTED: tl.constexpr):
    """Keys of a program's tokens at `at`, -1 from `end` on; of its list if it is `listed`.

    `source`: the row's raw and adjusted logits, its adjusted row, the program's list, peak and
    scale."""
    raw_ptr, own_ptr, adjusted, list_ptr, peak, scale = source
    inside = at < end
    logits = load_logits(raw_ptr, own_ptr, adjusted, at, inside & (listed == 0), HAS_ADJUSTED)
    live = tl.load(list_ptr + at, inside & (listed != 0), other=float("-inf"))
    return tl.where(inside, keys_of(tl.where(listed != 0, live, logits), peak, scale), -1)


@triton.jit
def collect(source, length_ptr, begin, end, low, HAS_ADJUSTED: tl.constexpr):
    """List the logits of a program's tokens with a key of at least `low`, in any order, and some
    of -inf up to a multiple of GRAIN; how many these are."""
    raw_ptr, own_ptr, adjusted, list_ptr, peak, scale = source
    tl.atomic_xchg(length_ptr, 0)
    tl.debug_barrier()
    for start in tl.range(begin, end, CHUNK):
        at = start + tl.arange(0, CHUNK)
        inside = at < end
        logits = load_logits(raw_ptr, own_ptr, adjusted, at, inside, HAS_ADJUSTED)
        live = inside & (keys_of(logits, peak, scale) >= low)
        place = tl.atomic_add(length_ptr + at * 0, 1, live, sem="relaxed")
        tl.store(list_ptr + place, logits, live)
    tl.debug_barrier()
    length = tl.atomic_add(length_ptr, 0)
    padded = (length + GRAIN - 1) // GRAIN * GRAIN
    rest = length + tl.arange(0, GRAIN)
    tl.store(list_ptr + rest, float("-inf"), rest < padded)
    tl.debug_barrier()
    return padded


@triton.jit
def own_sums(
    source,
    listed,
    begin,
    end,
    low,
    high,
    counting,
    THREADS: tl.constexpr,
    VECTOR: tl.constexpr,
    HAS_ADJUSTED: tl.constexpr,
):
    """One pass over a program's tokens: sums i64[PIVOTS] of the weights (counting: numbers) of
    those with a key of at least low + 1, one step more, and so on; the smallest and the largest key
    in [low, high]."""
    # Three axes from the load on, pivots, threads and a thread's tokens: so a thread adds up what
    # it has loaded, for all pivots, and threads exchange nothing before the end.
    pivots = (low + 1 + step_in(low, high) * tl.arange(0, PIVOTS))[:, None, None]
    columns = tl.arange(0, THREADS)[None, :, None] * VECTOR + tl.arange(0, VECTOR)[None, None, :]
    sums = tl.zeros([PIVOTS, THREADS], tl.int64)
    smallest = tl.full([1, THREADS], LARGEST_KEY, tl.int32)
    largest = tl.full([1, THREADS], -1, tl.int32)
    for start in tl.range(begin, end, THREADS * VECTOR, loop_unroll_factor=2):
        keys = keys_at(source, listed, end, start + columns, HAS_ADJUSTED)
        values = tl.where(counting, 1, weights_of(keys))
        sums += tl.sum(tl.where(keys >= pivots, values, 0), 2)
        within = (keys >= low) & (keys <= high)
        smallest = tl.minimum(smallest, tl.min(tl.where(within, keys, LARGEST_KEY), 2))
        largest = tl.maximum(largest, tl.max(tl.where(within, keys, -1), 2))
    return tl.sum(sums, 1), tl.min(tl.min(smallest, 1), 0), tl.max(tl.max(largest, 1), 0)


@triton.jit
def exchange(peers, turn, sums, smallest, largest):
    """Row totals over all its programs, and the sums of the programs before this one.
    Double-buffered: a buffer is rewritten only after every program has read the other.

    `peers`: the row's parts, its arrivals, the program's place among them and their number."""
    part_ptr, arrival_ptr, split, num_splits = peers
    before = tl.zeros([PIVOTS], tl.int64)
    if num_splits > 1:
        pivots = tl.arange(0, PIVOTS)
        place = part_ptr + (turn % 2) * (MAX_SPLITS * PART_FIELDS)
        own = place + split * PART_FIELDS
        tl.store(own + pivots, sums)
        tl.store(own + PIVOTS, smallest.to(tl.int64))
        tl.store(own + PIVOTS + 1, largest.to(tl.int64))
        tl.debug_barrier()  # all threads' stores come before the program's arrival
        arrived = tl.atomic_add(arrival_ptr, 1, sem="acq_rel") + 1
        while arrived < num_splits * (turn + 1):
            arrived = tl.atomic_add(arrival_ptr, 0, sem="acquire")
        tl.debug_barrier()
        splits = tl.arange(0, MAX_SPLITS)
        there = splits < num_splits
        each = place + splits * PART_FIELDS
        at = each[:, None] + pivots[None, :]
        parts = tl.load(at, there[:, None], other=0, cache_modifier=".cg")
        before = tl.sum(tl.where((splits < split)[:, None], parts, 0), 0)
        sums = tl.sum(parts, 0)
        lows = tl.load(each + PIVOTS, there, other=LARGEST_KEY, cache_modifier=".cg")
        highs = tl.load(each + PIVOTS + 1, there, other=-1, cache_modifier=".cg")
        smallest = tl.min(lows, 0).to(tl.int32)
        largest = tl.max(highs, 0).to(tl.int32)
    return sums, smallest, largest, before


@triton.jit
def narrowed(sums, smallest, largest, low, high, above, target):
    """The bracket [low, high] of keys, in which the running sum reaches `target`, narrowed by what
    one pass found, and the sum above the new one."""
    step = step_in(low, high)
    enough = sums >= target
    count = tl.sum(enough.to(tl.int32), 0)
    above = tl.maximum(above, tl.max(tl.where(enough, 0, sums), 0))
    inner = low + 1 + step * (count - 1)
    new_low = tl.where(count == 0, low, inner)
    new_high = tl.where(count == 0, low, tl.minimum(high, inner + step - 1))
    return tl.maximum(new_low, smallest), tl.minimum(new_high, largest), above


@triton.jit
def step_in(low, high):
    """Keys between two pivots of a pass over [low, high]."""
    return tl.maximum((high - low + PIVOTS - 1) // PIVOTS, 1)


@triton.jit
def share_target(top_p, mass):
    """The running sum, at least 1, with which the share of `mass` is reached."""
    target = tl.ceil(top_p * mass.to(tl.float64)).to(tl.int64)
    return tl.maximum(tl.minimum(target, mass), 1)


@triton.jit
def num_live(sums, target, low, counting):
    """At most how many tokens have a key of at least `low`, by the pass that found it."""
    least = tl.min(tl.where(sums >= target, sums, 2**62), 0)
    return tl.where(counting, least, least // tl.maximum(weights_of(low), 1))


@triton.jit
def reached(low, above, target):
    """The running sum with the first token of key `low` that reaches the target, and how many of
    that key come before it."""
    weight = tl.maximum(weights_of(low), 1)
    before = (target - above - 1) // weight
    return above + (before + 1) * weight, before


@triton.jit
def searched(
    entry,
    source,
    peers,
    length_ptr,
    begin,
    end,
    vocab_size,
    ALIGNMENT: tl.constexpr,
    THREADS: tl.constexpr,
    VECTOR: tl.constexpr,
    HAS_ADJUSTED: tl.constexpr,
):
    """The drawn token as its key, its rank among the tokens of that key, and how many of these the
    programs before this one have. The rank is negative where nothing has any weight."""
    top_k = tl.load(entry + TOP_K)
    top_p = tl.load(entry + TOP_P).to(tl.float64, bitcast=True)
    least_key = tl.load(entry + LEAST_KEY).to(tl.int32)
    last, zero = tl.full([], LARGEST_KEY, tl.int32), tl.full([], 0, tl.int64)
    # A value of its own for each: the compiler takes a variable for constant over the loop if it
    # is only ever given another one's value and both began with the same.
    low, high, target = last * 0, last + 0, top_k + 0
    above, mass, rank, ties = zero + 0, zero + 0, zero + 0, zero + 0
    kept, turn, listed = last * 0, last * 0, last * 0
    first, first_low, first_high = tl.zeros([PIVOTS], tl.int64), last * 0, last * 0
    phase = tl.where((top_k > 0) & (top_k < vocab_size), NUMBER, MASS)
    while phase < DONE:
        counting = (phase == NUMBER) | (phase == TIES)
        begin, end = tl.multiple_of(begin, ALIGNMENT), tl.multiple_of(end, ALIGNMENT)
        sums, smallest, largest = own_sums(
            source, listed, begin, end, low, high, counting, THREADS, VECTOR, HAS_ADJUSTED
        )
        sums, smallest, largest, before = exchange(peers, turn, sums, smallest, largest)
        turn += 1
        draws, live = phase == LEAST, zero + MAX_LIVE + 1
        if phase == TIES:
            pivots = tl.arange(0, PIVOTS)
            ties = tl.sum(tl.where(pivots == 0, before, tl.where(pivots == 1, -before, 0)), 0)
            phase += 1
        elif phase == LEAST:
            mass = tl.minimum(mass, tl.max(sums, 0))
        else:
            if phase == MASS:
                first, first_low, first_high, kept = sums, smallest, largest, low
                mass = tl.max(sums, 0) + ties * weights_of(low)
                target = share_target(top_p, mass)
                phase += 1
            low, high, above = narrowed(sums, smallest, largest, low, high, above, target)
            live = num_live(sums, target, low, counting)
        if (phase == NUMBER) & (low >= high):
            ties = target - above
            high, above, phase = last, zero, phase + 1
        if (listed == 0) & (live <= MAX_LIVE) & ((phase < MARK) | (low < high)):
            end = collect(source, length_ptr, begin, end, low, HAS_ADJUSTED)
            begin, listed = begin * 0, listed + 1
        if (phase == SHARE) & ((low >= high) | (top_p >= 1.0)):
            share, _ = reached(low, above, target)
            mass = tl.where(top_p < 1.0, share, mass)
            draws = least_key <= kept
            low, high, phase = least_key - 1, last, phase + 1
        if draws:
            target = draw_in(entry, mass) + 1
            low, high, above = narrowed(first, first_low, first_high, kept, last, zero, target)
            phase = zero.to(tl.int32) + MARK
        if (phase == MARK) & (low >= high):
            _, rank = reached(low, above, target)
            low, high, ties = low - 1, low, zero
            phase += tl.where(peers[3] > 1, 1, 2)
    return high, rank, ties


@triton.jit(do_not_specialize=["peak_splits", "num_splits"])
def search_kernel(
    logits_ptr,
    adjusted_ptr,
    row_ptr,
    peak_ptr,
    id_ptr,
    part_ptr,
    arrival_ptr,
    live_ptr,
    length_ptr,
    count_ptr,
    output_ptr,
    vocab_size,
    row_stride,
    split_size,
    peak_splits,
    num_splits,
    ALIGNMENT: tl.constexpr,
    THREADS: tl.constexpr,
    VECTOR: tl.constexpr,
    HAS_ADJUSTED: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Grid (rows x num_splits,), all programs of a row next to each other and running at once.
    ALIGNMENT divides the vocabulary, and `split_size`: 1 or up to GRAIN."""
    follow(OVERLAP)
    program = tl.program_id(0).to(tl.int64)
    row = program // num_splits
    split = tl.program_id(0) % num_splits
    entry = row_ptr + row * FIELDS
    if tl.load(entry + KIND) != ORDERED:
        return
    adjusted = tl.load(entry + ADJUSTED)
    peak, likeliest = row_peak(peak_ptr, id_ptr, row, peak_splits)
    if split == 0:  # what a row without any weight gets, one of NaN say
        tl.store(output_ptr + row, likeliest.to(tl.int64))
    begin = tl.minimum(split * split_size, vocab_size)  # an unrolled loop must not run backwards
    end = tl.minimum(begin + split_size, vocab_size)
    raw_ptr = logits_ptr + row * row_stride
    own_ptr = adjusted_ptr + adjusted * vocab_size
    source = (
        raw_ptr,
        own_ptr,
        adjusted,
        live_ptr + program * (MAX_LIVE + GRAIN),
        peak,
        key_scale(entry),
    )
    part_ptr += row * (2 * MAX_SPLITS * PART_FIELDS)
    peers = (part_ptr, arrival_ptr + row, split, num_splits)
    key, rank, seen = searched(
        entry,
        source,
        peers,
        length_ptr + program,
        begin,
        end,
        vocab_size,
        ALIGNMENT,
        THREADS,
        VECTOR,
        HAS_ADJUSTED,
    )
    if rank < 0:
        return
    counts = tl.load(entry + COUNTS)
    start = begin
    while (start < end) & (seen <= rank):
        at = start + tl.arange(0, CHUNK)
        same = (keys_at(source, 0, end, at, HAS_ADJUSTED) == key).to(tl.int32)
        number = tl.sum(same, 0)
        if rank < seen + number:
            chosen = (same > 0) & (tl.cumsum(same, 0) - 1 == rank - seen)
            token_id = tl.sum(tl.where(chosen, at, 0), 0)
            choose(output_ptr, row, token_id, count_ptr, counts, vocab_size)
        seen += number
        start += CHUNK
