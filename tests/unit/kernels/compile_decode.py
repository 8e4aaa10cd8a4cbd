"""Compile paged_decode and its small kernels ahead of time, without a GPU.

Run as a program, by test_compile_decode.py: Triton must be imported without its interpreter.
`--all` compiles every type, head size and tile; the default is one of each that differs most.
Prints one JSON line per variant.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels.decode_parts import merge_kernel
from kernels.decode_plan import PLAN_FIELDS, plan_kernel
from kernels.decode_tiles import MERGE_WARPS, TILES, DecodeTile, decode_tile, tile_parts, tile_rows
from kernels.paged_decode import paged_decode_kernel

CAPABILITIES = (80, 90, 100)
POINTERS = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float16: "*fp16"}
HEAD_SIZES = (64, 80, 96, 128, 256)
NUM_KV_HEADS, GROUP, MULTIPROCESSORS = 8, 4, 132
FEW = (
    (torch.bfloat16, 128, 8),
    (torch.bfloat16, 80, 3),
    (torch.float16, 256, 0),
    (torch.float32, 256, 0),
)
"""(type, head size, row of the table)"""


def make_source(kernel: Any, types: dict[str, str], constants: dict[str, Any]) -> Any:
    """Integers not named in `types` are i32 and, like pointers, divisible by 16."""
    names = [name for name in kernel.arg_names if name not in constants]
    signature = {name: types.get(name, "i32") for name in names}
    signature |= dict.fromkeys(constants, "constexpr")
    aligned = {
        (index,): [["tt.divisibility", 16]]
        for index, name in enumerate(kernel.arg_names)
        if name in names and name not in ("scale", "num_rows", "num_programs", "num_resident")
    }
    ordered = {name: signature[name] for name in kernel.arg_names}
    return ASTSource(fn=kernel, signature=ordered, constexprs=constants, attrs=aligned)


def decode_source(dtype: torch.dtype, head_dim: int, tile: DecodeTile) -> Any:
    pointer, exact = POINTERS[dtype], dtype is torch.float32
    types = {"q_ptr": pointer, "pool_ptr": pointer, "output_ptr": pointer, "scale": "fp32"}
    types |= dict.fromkeys(("table_ptr", "length_ptr", "plan_ptr", "arrival_ptr"), "*i32")
    types |= dict.fromkeys(("part_ptr", "stat_ptr"), "*fp32")
    constants = {
        "NUM_KV_HEADS": NUM_KV_HEADS,
        "GROUP": GROUP,
        "BLOCK_SIZE": 16,
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
    return make_source(paged_decode_kernel, types, constants)


def small_sources() -> Iterator[tuple[str, Any]]:
    lengths = {"length_ptr": "*i32", "plan_ptr": "*i32", "start_ptr": "*i32"}
    constants = {"NUM_KV_HEADS": 8, "TILE_KEYS": 16, "TILE_ROWS": 256, "TILE_PROGRAMS": 16}
    yield "plan", make_source(plan_kernel, lengths, constants | {"FIELDS": PLAN_FIELDS})
    types = lengths | {"part_ptr": "*fp32", "stat_ptr": "*fp32", "output_ptr": "*bf16"}
    constants = {"NUM_KV_HEADS": 8, "GROUP": GROUP, "HEAD_DIM": 128, "TILE_KEYS": 16}
    constants |= {"TILE_DIM": 128, "TILE_PARTS": tile_parts(128, MERGE_WARPS), "OVERLAP": False}
    yield "merge", make_source(merge_kernel, types, constants)


def variants(everything: bool) -> Iterator[tuple[torch.dtype, int, DecodeTile]]:
    """(type, head size, tile): each row of the table where the type has one."""
    for dtype in POINTERS:
        for head_dim in HEAD_SIZES:
            kv_pool = torch.empty(1, 1, 2, NUM_KV_HEADS, 16, head_dim, dtype=dtype)
            seen = set()
            for index, row in enumerate(TILES):
                num_rows = max(1, int(min(row.max_heads, 12.0) * MULTIPROCESSORS / NUM_KV_HEADS))
                tile = decode_tile(num_rows, kv_pool, MULTIPROCESSORS)
                if tile not in seen and (everything or (dtype, head_dim, index) in FEW):
                    yield dtype, head_dim, tile
                seen.add(tile)


def report(name: str, source: Any, capability: int, options: dict[str, Any]) -> None:
    kernel = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    line = {
        "name": f"{name} sm_{capability}",
        "cubin_bytes": len(kernel.asm["cubin"]),
        "shared_bytes": kernel.metadata.shared,
    }
    sys.stdout.write(json.dumps(line) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--all", action="store_true")
    everything = parser.parse_args().all
    for capability in CAPABILITIES:
        for dtype, head_dim, tile in variants(everything):
            name = f"paged_decode {dtype} {head_dim} {tile}"
            source = decode_source(dtype, head_dim, tile)
            report(name, source, capability, tile.launch_options)
        for name, source in small_sources():
            report(name, source, capability, {"num_warps": MERGE_WARPS})
    overlapping = decode_tile(
        1, torch.empty(1, 1, 2, 8, 16, 128, dtype=torch.bfloat16), MULTIPROCESSORS, overlap=True
    )
    source = decode_source(torch.bfloat16, 128, overlapping)
    report("paged_decode overlapping", source, 90, overlapping.launch_options)


if __name__ == "__main__":
    main()
