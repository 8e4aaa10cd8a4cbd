"""Variants of the digest kernel: compile_all.py compiles them."""

from collections.abc import Iterator
from itertools import product

from kernels.digest.block_digest import NUM_WARPS, TILE_WORDS, WHOLE_ROW, Row, block_digest_kernel
from tests.unit.kernels.variant import CAPABILITIES, Variant, make_source

STRIDE = 2 * 2**20 // 8
"""words of a block of Llama-3.1-8B"""
ROWS = {"": WHOLE_ROW, "of some heads": Row(1024, 4096, 1024)}
"""on one GPU, and on each of four"""


def variants() -> Iterator[Variant]:
    names = ("pool_ptr", "bound_ptr", "block_ptr", "output_ptr")
    types = dict.fromkeys(names, "*i64") | {"first_part": "i32", "first_in_row": "i32"}
    for capability, (detail, row) in product(CAPABILITIES, ROWS.items()):
        constants = {"STRIDE": STRIDE * row.own // row.whole, "TILE_WORDS": TILE_WORDS}
        constants |= {"OWN": row.own, "WHOLE": row.whole}
        source = make_source(block_digest_kernel, types, constants, ("first_part", "first_in_row"))
        options = {"num_warps": NUM_WARPS}
        yield Variant("block_digest", "i64", 0, capability, source, options, detail)
