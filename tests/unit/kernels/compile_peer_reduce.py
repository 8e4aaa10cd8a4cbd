"""Variants of the reduction over peer pointers: compile_all.py compiles them."""

from collections.abc import Iterator
from typing import Any

from kernels.peer_inbox import NUM_PROGRAMS, NUM_TURNS
from kernels.peer_reduce import TILES, peer_reduce_kernel
from tests.unit.kernels.variant import CAPABILITIES, DTYPES, Variant, make_source

OVERLAPPING = 90
"""the first generation whose launches may overlap"""


def variants() -> Iterator[Variant]:
    for capability in CAPABILITIES:
        for dtype in DTYPES:
            yield peer_variant(dtype, capability, size=2, row=0, residual=True)
            yield peer_variant(dtype, capability, size=4, row=len(TILES) - 1, residual=False)
        yield peer_variant("bf16", capability, size=8, row=1, residual=True)


def peer_variant(dtype: str, capability: int, *, size: int, row: int, residual: bool) -> Variant:
    _, tile, warps = TILES[row]
    types = dict.fromkeys(("input_ptr", "residual_ptr", "output_ptr", "counter_ptr"), "*i32")
    types |= {"address_ptr": "*i64"}
    constants: dict[str, Any] = {
        "RANK": 1,
        "SIZE": size,
        "TURNS": NUM_TURNS,
        "PROGRAMS": NUM_PROGRAMS,
    }
    constants |= {"KIND": dtype, "RESIDUAL": residual, "TILE": tile}
    constants["OVERLAP"] = overlap = capability >= OVERLAPPING
    source = make_source(peer_reduce_kernel, types, constants)
    options = {"num_warps": warps, "launch_pdl": overlap}
    detail = f"of {size}, {tile} words"
    return Variant("peer_reduce", dtype, 0, capability, source, options, detail)
