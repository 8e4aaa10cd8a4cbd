"""Compile paged_prefill for every GPU generation we serve on, without a GPU.

Run as a program, by test_compile_prefill.py: Triton must be imported without its interpreter.
With names it compiles only those variants, else all. Prints one JSON line per variant.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource
from triton.experimental.gluon.language import NVMMASharedLayout

from kernels.launch import next_power_of_two
from kernels.paged_prefill import paged_prefill_kernel
from kernels.paged_prefill_hopper import paged_prefill_hopper_kernel
from kernels.prefill_plan import (
    HOPPER_KEYS,
    HOPPER_STAGES,
    ITEM_FIELDS,
    padded_dim,
    panel_columns,
    portable_tile,
)

CAPABILITIES = (80, 90, 100)
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
HEAD_DIMS = (64, 80, 96, 128, 256)
BLOCK_SIZE = 16
POINTERS = {"table_ptr": "*i32", "item_ptr": "*i32", "scale": "fp32"}
UNALIGNED = ("scale", "window", "table_stride")


class Variant(NamedTuple):
    """One kernel to compile."""

    name: str
    capability: int
    source: Any
    options: dict[str, int]


def variants() -> Iterator[Variant]:
    """Every type and head size: the portable form for all generations, Hopper's for its own."""
    for name, dtype in DTYPES.items():
        for head_dim in HEAD_DIMS:
            for capability in CAPABILITIES:
                yield portable_variant(name, dtype, head_dim, capability)
            if dtype.itemsize == 2:
                yield hopper_variant(name, head_dim)


def portable_variant(name: str, dtype: torch.dtype, head_dim: int, capability: int) -> Variant:
    tile = portable_tile(dtype, head_dim)
    constants = {
        "GROUP": 4,
        "SECTION": 4,
        "FIELDS": ITEM_FIELDS,
        "BLOCK_SIZE": BLOCK_SIZE,
        "HEAD_DIM": head_dim,
        "TILE_ROWS": tile.num_rows,
        "TILE_KEYS": tile.num_keys,
        "TILE_DIM": next_power_of_two(head_dim),
        "PRECISION": "ieee" if dtype is torch.float32 else "tf32",
        "WINDOW": True,
    }
    types = POINTERS | dict.fromkeys(("q_ptr", "pool_ptr", "output_ptr"), f"*{name}")
    source = ASTSource(paged_prefill_kernel, *_arguments(paged_prefill_kernel, constants, types))
    options = {"num_warps": tile.num_warps, "num_stages": tile.num_stages}
    return Variant(f"paged_prefill {name} {head_dim} sm_{capability}", capability, source, options)


def hopper_variant(name: str, head_dim: int) -> Variant:
    panel, padded = panel_columns(head_dim), padded_dim(head_dim)
    box = [BLOCK_SIZE // 8, padded // panel, 8, panel]
    constants = {
        "NUM_KV_HEADS": 8,
        "GROUP": 4,
        "SECTION": 4,
        "FIELDS": ITEM_FIELDS,
        "BLOCK_SIZE": BLOCK_SIZE,
        "HEAD_DIM": head_dim,
        "TILE_KEYS": HOPPER_KEYS[padded],
        "TILE_DIM": padded,
        "STAGES": HOPPER_STAGES,
        "WINDOW": True,
    }
    layout = NVMMASharedLayout(2 * panel, 16, 4)
    types = POINTERS | dict.fromkeys(("q_ptr", "output_ptr"), f"*{name}")
    types |= {"kv_desc": f"tensordesc<{name}{box},{layout!r}>"}
    types |= {"layer_group": "i32", "block_groups": "i32"}
    kernel = paged_prefill_hopper_kernel
    source = GluonASTSource(kernel, *_arguments(kernel, constants, types))
    return Variant(f"paged_prefill_hopper {name} {head_dim} sm_90", 90, source, {"num_warps": 4})


def _arguments(
    kernel: Any, constants: dict[str, Any], types: dict[str, str]
) -> tuple[dict[str, str], dict[str, Any], dict[tuple[int], list[list[object]]]]:
    """Signature, constants, and which arguments are multiples of 16, as at run time."""
    names = kernel.arg_names
    signature = {
        name: "constexpr" if name in constants else types.get(name, "i64") for name in names
    } | {"window": "i32", "table_stride": "i32"}
    aligned = {
        (index,): [["tt.divisibility", 16]]
        for index, name in enumerate(names)
        if name not in constants and name not in UNALIGNED and name != "kv_desc"
    }
    return signature, constants, aligned


def main() -> None:
    parser = argparse.ArgumentParser(description="compile paged_prefill")
    parser.add_argument("names", nargs="*")
    names = parser.parse_args().names
    for variant in variants():
        if names and variant.name not in names:
            continue
        target = GPUTarget("cuda", variant.capability, 32)
        kernel = triton.compile(variant.source, target=target, options=variant.options)
        line = {
            "name": variant.name,
            "capability": variant.capability,
            "cubin_bytes": len(kernel.asm["cubin"]),
            "shared_bytes": kernel.metadata.shared,
        }
        sys.stdout.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
