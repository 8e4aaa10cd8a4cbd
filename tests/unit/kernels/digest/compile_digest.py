"""Variants of the digest kernel: compile_all.py compiles them."""

from collections.abc import Iterator

from kernels.digest.block_digest import NUM_WARPS, TILE_WORDS, block_digest_kernel
from tests.unit.kernels.variant import CAPABILITIES, Variant, make_source

STRIDE = 2 * 2**20 // 8
"""words of a block of Llama-3.1-8B"""


def variants() -> Iterator[Variant]:
    names = ("pool_ptr", "bound_ptr", "block_ptr", "output_ptr")
    constants = {"STRIDE": STRIDE, "TILE_WORDS": TILE_WORDS}
    for capability in CAPABILITIES:
        types = dict.fromkeys(names, "*i64") | {"first_part": "i32"}
        source = make_source(block_digest_kernel, types, constants, ())
        yield Variant("block_digest", "i64", 0, capability, source, {"num_warps": NUM_WARPS}, "")
