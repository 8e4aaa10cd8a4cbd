"""Tiles of skinny_linear that several programs share: left in parts, added by the last to arrive.

A program leaves at most two parts: one of the tile it begins with, in slot 2 * program, and one of
the tile it ends with, in the next. So the parts of a tile lie in slots that follow from the number
of its first unit, and are added in the order of the programs, whoever finishes first.
"""

import triton
import triton.language as tl


@triton.jit
def leave_part(part_ptr, square_ptr, slot, product, squares, NORM: tl.constexpr):
    """What one program has for a tile that others have a share in: its product [columns, rows] and
    its rows' sums of squares."""
    WIDTH: tl.constexpr = product.shape[0]
    ROWS: tl.constexpr = product.shape[1]
    elements = tl.arange(0, WIDTH)[:, None] * ROWS + tl.arange(0, ROWS)[None, :]
    tl.store(part_ptr + slot.to(tl.int64) * (WIDTH * ROWS) + elements, product)
    if NORM:
        tl.store(square_ptr + slot * ROWS + tl.arange(0, ROWS), squares)


@triton.jit
def arrive(arrival_ptr, num_parts):
    """Whether this program's part is the last of its tile; the last resets the counter."""
    tl.debug_barrier()  # the whole program's stores come before its arrival
    last = tl.atomic_add(arrival_ptr, 1, sem="acq_rel") == num_parts - 1
    if last:
        tl.store(arrival_ptr, 0)
    return last


@triton.jit
def add_parts(
    part_ptr,
    square_ptr,
    begin,
    num_parts,
    run,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    NORM: tl.constexpr,
):
    """Product and sums of squares of the tile whose first unit is `begin`."""
    rows = tl.arange(0, ROWS)
    elements = tl.arange(0, WIDTH)[:, None] * ROWS + rows[None, :]
    product = tl.zeros([WIDTH, ROWS], tl.float32)
    squares = tl.zeros([ROWS], tl.float32)
    first = begin // run
    first_slot = 2 * first + (begin != first * run).to(tl.int32)
    for number in range(num_parts):
        slot = tl.where(number == 0, first_slot, 2 * (first + number))
        place = part_ptr + slot.to(tl.int64) * (WIDTH * ROWS)
        product += tl.load(place + elements, cache_modifier=".cg")
        if NORM:
            squares += tl.load(square_ptr + slot * ROWS + rows, cache_modifier=".cg")
    return product, squares
