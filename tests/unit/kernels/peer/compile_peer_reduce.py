"""Variants of the reduction over peer pointers: compile_all.py compiles them."""

from collections.abc import Iterator
from typing import Any

from kernels.peer.inbox import NUM_PROGRAMS, NUM_TURNS
from kernels.peer.reduce import SLICED_TILES, WHOLE_TILES, PeerTile, peer_reduce_kernel
from tests.unit.kernels.variant import CAPABILITIES, DTYPES, Variant, make_source

OVERLAPPING = 90
"""the first generation whose launches may overlap"""


def variants() -> Iterator[Variant]:
    small, middle, large = (tile for _, tile in WHOLE_TILES)
    sliced, _ = (tile for _, tile in SLICED_TILES)
    for capability in CAPABILITIES:
        for dtype in DTYPES:
            yield peer_variant(dtype, capability, size=2, tile=small, residual=True)
            yield peer_variant(dtype, capability, size=4, tile=large, residual=False)
            yield peer_variant(dtype, capability, size=4, tile=sliced, residual=True)
        yield peer_variant("bf16", capability, size=8, tile=middle, residual=True)
        yield peer_variant("bf16", capability, size=8, tile=sliced, residual=True)


def peer_variant(
    dtype: str, capability: int, *, size: int, tile: PeerTile, residual: bool
) -> Variant:
    types: dict[str, str | tuple[str, ...]] = dict.fromkeys(
        ("input_ptr", "residual_ptr", "output_ptr", "counter_ptr"), "*i32"
    )
    types |= {"addresses": ("i64",) * size}
    constants: dict[str, Any] = {
        "RANK": 1,
        "SIZE": size,
        "TURNS": NUM_TURNS,
        "PROGRAMS": NUM_PROGRAMS,
    }
    constants |= {
        "KIND": dtype,
        "RESIDUAL": residual,
        "TILE": tile.num_words,
        "SLICED": tile.sliced,
    }
    constants["OVERLAP"] = overlap = capability >= OVERLAPPING
    source = make_source(peer_reduce_kernel, types, constants)
    options = {"num_warps": tile.warps, "launch_pdl": overlap}
    detail = f"of {size}, {tile}"
    return Variant("peer_reduce", dtype, 0, capability, source, options, detail)
