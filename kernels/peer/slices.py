"""The two trips of large messages, for peer_reduce: slice r of every tile goes to rank r, which
adds it up and sends the sum to all others. A rank sends 2 / ranks of what whole tiles would take.

The first trip uses the first half of a program's places, the second trip the other.
"""

import triton
import triton.language as tl

from kernels.peer.words import ZERO, inbox_of, received, sendable


@triton.jit
def send_slices(
    input_ptr,
    addresses,
    num_words,
    place,
    RANK: tl.constexpr,
    SIZE: tl.constexpr,
    TILE: tl.constexpr,
):
    """Slice r of every tile goes to rank r."""
    SLICE: tl.constexpr = TILE // SIZE
    columns = tl.arange(0, SLICE)
    for tile in range(tl.program_id(0) * TILE, num_words, tl.num_programs(0) * TILE):
        for distance in tl.static_range(1, SIZE):
            here = tile + (RANK + distance) % SIZE * SLICE + columns
            inside = here < num_words
            words = tl.load(input_ptr + here, inside, other=0)
            inbox = inbox_of(addresses, (RANK + distance) % SIZE)
            tl.store(inbox + place + columns, sendable(words), inside)
        place += SLICE


@triton.jit
def copy_arrived(
    output_ptr,
    start,
    num_words,
    places,
    stride,
    RANK: tl.constexpr,
    SIZE: tl.constexpr,
    SLICE: tl.constexpr,
):
    """Copy what has arrived by now of a tile's sums, and say whether words are missing."""
    columns = tl.arange(0, SLICE)
    missing = tl.zeros([SLICE], tl.int32)
    for source in tl.static_range(SIZE):
        if source != RANK:
            here = start + source * SLICE + columns
            inside = here < num_words
            words = tl.load(places + source * stride + columns, inside, other=ZERO, volatile=True)
            missing |= (words == 0).to(tl.int32)
            tl.store(output_ptr + here, received(words), inside)
    return tl.max(missing, 0)


@triton.jit
def gather_slices(
    output_ptr,
    addresses,
    num_words,
    sum_place,
    stride,
    RANK: tl.constexpr,
    SIZE: tl.constexpr,
    TILE: tl.constexpr,
):
    """Take the other ranks' sums."""
    SLICE: tl.constexpr = TILE // SIZE
    columns = tl.arange(0, SLICE)
    places = inbox_of(addresses, RANK) + sum_place
    for tile in range(tl.program_id(0) * TILE, num_words, tl.num_programs(0) * TILE):
        missing = copy_arrived(output_ptr, tile, num_words, places, stride, RANK, SIZE, SLICE)
        while missing != 0:
            missing = copy_arrived(output_ptr, tile, num_words, places, stride, RANK, SIZE, SLICE)
        for source in tl.static_range(SIZE):
            if source != RANK:
                inside = tile + source * SLICE + columns < num_words
                tl.store(places + source * stride + columns, 0, inside)
        places += SLICE
