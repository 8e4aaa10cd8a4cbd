"""Compile every kernel for every GPU generation we serve on, without a GPU.

Run as a program, by test_compile.py: Triton must be imported without its interpreter. Prints one
JSON line per variant.
"""

import json
import sys
from collections.abc import Iterator
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels.launch import num_warps, store_kv_tile
from kernels.store_kv import store_kv_kernel

CAPABILITIES = (80, 90, 100)
POINTERS = ("*fp32", "*bf16", "*fp16")
STORE_SHAPES = ((8, 128), (2, 64), (3, 80))
"""(num_kv_heads, head_dim)"""


def store_kv_variants() -> Iterator[tuple[str, Any, int]]:
    """(name, source, warps) of each variant of store_kv."""
    for pointer in POINTERS:
        for num_heads, head_dim in STORE_SHAPES:
            tile_heads, tile_dim = store_kv_tile(num_heads, head_dim)
            constants = {
                "NUM_HEADS": num_heads,
                "BLOCK_SIZE": 16,
                "HEAD_DIM": head_dim,
                "TILE_HEADS": tile_heads,
                "TILE_DIM": tile_dim,
            }
            types = {"k_ptr": pointer, "v_ptr": pointer, "pool_ptr": pointer, "slot_ptr": "*i64"}
            signature = {
                name: "constexpr" if name in constants else types.get(name, "i64")
                for name in store_kv_kernel.arg_names
            }
            source = ASTSource(fn=store_kv_kernel, signature=signature, constexprs=constants)
            warps = num_warps(tile_heads * tile_dim)
            yield f"store_kv {pointer} {num_heads}x{head_dim}", source, warps


def main() -> None:
    for name, source, warps in store_kv_variants():
        for capability in CAPABILITIES:
            target = GPUTarget("cuda", capability, 32)
            kernel = triton.compile(source, target=target, options={"num_warps": warps})
            line = {
                "name": f"{name} sm_{capability}",
                "cubin_bytes": len(kernel.asm["cubin"]),
                "shared_bytes": kernel.metadata.shared,
            }
            sys.stdout.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
