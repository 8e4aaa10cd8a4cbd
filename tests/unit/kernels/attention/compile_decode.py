"""Variants of paged_decode and its small kernels: compile_all.py compiles them."""

from collections.abc import Iterator
from typing import Any

import torch
import triton

from kernels.attention.decode_parts import merge_kernel
from kernels.attention.decode_plan import PLAN_FIELDS, plan_kernel
from kernels.attention.decode_tiles import (
    MERGE_WARPS,
    TILES,
    DecodeTile,
    decode_tile,
    tile_parts,
    tile_rows,
)
from kernels.attention.paged_decode import paged_decode_kernel
from tests.unit.kernels.variant import (
    BLOCK_SIZES,
    CAPABILITIES,
    DTYPES,
    OVERLAPPING,
    Variant,
    combinations,
    is_paired,
    make_source,
)

NUM_KV_HEADS, GROUP, MULTIPROCESSORS = 8, 4, 132
MEASURED = ("bf16", 90)
"""the type and generation the table of tiles was measured for"""


def variants() -> Iterator[Variant]:
    """Every tile of the table where it was measured, one of them elsewhere."""
    for number, head_dim, dtype, capability in combinations():
        block_size = BLOCK_SIZES[number % len(BLOCK_SIZES)]
        every = tiles(dtype, head_dim, capability >= OVERLAPPING)
        one = every[number % len(every)]
        is_chosen = is_paired(number, capability)
        chosen = every if (dtype, capability) == MEASURED else [one] * is_chosen
        for tile in chosen:
            yield decode_variant(dtype, head_dim, capability, block_size, tile)
        if is_chosen:
            yield merge_variant(dtype, head_dim, capability)
    for capability in CAPABILITIES:
        yield plan_variant(capability)


def tiles(dtype: str, head_dim: int, overlap: bool) -> list[DecodeTile]:
    """Those of the table that differ for the compiler, each once."""
    kv_pool = torch.empty(1, 1, 2, NUM_KV_HEADS, 16, head_dim, dtype=DTYPES[dtype])
    different: dict[tuple[Any, ...], DecodeTile] = {}
    for row in TILES:
        num_rows = max(1, int(min(row.max_heads, 12.0) * MULTIPROCESSORS / NUM_KV_HEADS))
        tile = decode_tile(num_rows, kv_pool, MULTIPROCESSORS, overlap)
        key = (tile.num_keys, tile.merge_apart, *tile.launch_options.items())
        different.setdefault(key, tile)
    return list(different.values())


def decode_variant(
    dtype: str, head_dim: int, capability: int, block_size: int, tile: DecodeTile
) -> Variant:
    exact = DTYPES[dtype] is torch.float32
    types = dict.fromkeys(("q_ptr", "pool_ptr", "output_ptr"), f"*{dtype}") | {"scale": "fp32"}
    types |= dict.fromkeys(("table_ptr", "length_ptr", "plan_ptr", "arrival_ptr"), "*i32")
    types |= dict.fromkeys(("part_ptr", "stat_ptr"), "*fp32")
    constants = {
        "NUM_KV_HEADS": NUM_KV_HEADS,
        "GROUP": GROUP,
        "BLOCK_SIZE": block_size,
        "HEAD_DIM": head_dim,
        "TILE_KEYS": tile.num_keys,
        "TILE_ROWS": tile_rows(GROUP, exact),
        "TILE_DIM": triton.next_power_of_2(head_dim),
        "TILE_PARTS": tile_parts(GROUP * head_dim, tile.num_warps),
        "FIELDS": PLAN_FIELDS,
        "PRECISION": "ieee" if exact else "tf32",
        "MERGE_APART": tile.merge_apart,
        "OVERLAP": tile.overlap,
    }
    source = make_source(paged_decode_kernel, types, constants)
    detail = f"block {block_size} keys {tile.num_keys} warps {tile.num_warps}"
    detail += f" registers {tile.max_registers}" * bool(tile.max_registers)
    detail += " apart" * tile.merge_apart
    return Variant("paged_decode", dtype, head_dim, capability, source, tile.launch_options, detail)


def merge_variant(dtype: str, head_dim: int, capability: int) -> Variant:
    types = {"length_ptr": "*i32", "plan_ptr": "*i32", "start_ptr": "*i32"}
    types |= {"part_ptr": "*fp32", "stat_ptr": "*fp32", "output_ptr": f"*{dtype}"}
    constants: dict[str, Any] = {
        "NUM_KV_HEADS": NUM_KV_HEADS,
        "GROUP": GROUP,
        "HEAD_DIM": head_dim,
        "TILE_KEYS": 16,
        "TILE_DIM": triton.next_power_of_2(head_dim),
        "TILE_PARTS": tile_parts(head_dim, MERGE_WARPS),
        "OVERLAP": capability >= OVERLAPPING,
    }
    options = {"num_warps": MERGE_WARPS, "launch_pdl": capability >= OVERLAPPING}
    source = make_source(merge_kernel, types, constants)
    return Variant("merge", dtype, head_dim, capability, source, options)


def plan_variant(capability: int) -> Variant:
    types = {"length_ptr": "*i32", "plan_ptr": "*i32", "start_ptr": "*i32"}
    constants = {"NUM_KV_HEADS": NUM_KV_HEADS, "TILE_KEYS": 16, "TILE_ROWS": 256}
    constants |= {"TILE_PROGRAMS": 16, "FIELDS": PLAN_FIELDS}
    unaligned = ("num_rows", "num_programs", "num_resident", "least_run")
    source = make_source(plan_kernel, types, constants, unaligned)
    return Variant("plan", "i32", 0, capability, source, {"num_warps": MERGE_WARPS})
