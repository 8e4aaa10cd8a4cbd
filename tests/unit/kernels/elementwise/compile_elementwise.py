"""Variants of the elementwise kernels: compile_all.py compiles them."""

from collections.abc import Iterator

from kernels.elementwise.prepare_step import TILE, prepare_step_kernel
from kernels.elementwise.rms_norm import rms_norm_kernel, rms_norm_tile
from kernels.elementwise.rope_store import rope_store_kernel, rope_store_tile
from kernels.elementwise.silu_mul import silu_mul_kernel, silu_mul_tile
from kernels.elementwise.store_kv import store_kv_kernel
from kernels.launching.launch import num_warps, store_kv_tile
from tests.unit.kernels.variant import (
    BLOCK_SIZES,
    CAPABILITIES,
    DTYPES,
    OVERLAPPING,
    Variant,
    is_paired,
    make_source,
    pairs,
)

WIDTHS = (64, 1024, 2560, 4096, 16384)
NUM_HEADS, NUM_KV_HEADS = 32, 8


def variants() -> Iterator[Variant]:
    for number, head_dim, dtype, capability in pairs():
        block_size = BLOCK_SIZES[number % len(BLOCK_SIZES)]
        yield store_variant(dtype, head_dim, capability, block_size)
        yield rope_variant(dtype, head_dim, capability, block_size, norm=number % 2 == 1)
    for capability in CAPABILITIES:
        for kind, dtype in enumerate(DTYPES):
            for place, width in enumerate(WIDTHS):
                if is_paired(kind + place + CAPABILITIES.index(capability), capability):
                    yield norm_variant(dtype, width, capability)
            yield silu_variant(dtype, 11008, capability)
        yield prepare_variant(capability)


def norm_variant(dtype: str, width: int, capability: int) -> Variant:
    tile_rows, tile_width, warps = rms_norm_tile(width)
    names = ("x_ptr", "weight_ptr", "output_ptr")
    types = dict.fromkeys(names, f"*{dtype}") | {"eps": "fp32"}
    constants = {"WIDTH": width, "TILE_ROWS": tile_rows, "TILE_WIDTH": tile_width}
    constants["OVERLAP"] = capability >= OVERLAPPING
    source = make_source(rms_norm_kernel, types, constants, ("num_rows",))
    options = {"num_warps": warps, "launch_pdl": capability >= OVERLAPPING}
    return Variant("rms_norm", dtype, 0, capability, source, options, str(width))


def silu_variant(dtype: str, width: int, capability: int) -> Variant:
    tile_width, warps = silu_mul_tile(width)
    types = dict.fromkeys(("gate_up_ptr", "output_ptr"), f"*{dtype}")
    constants = {"WIDTH": width, "TILE_WIDTH": tile_width, "OVERLAP": capability >= OVERLAPPING}
    source = make_source(silu_mul_kernel, types, constants)
    options = {"num_warps": warps, "launch_pdl": capability >= OVERLAPPING}
    return Variant("silu_mul", dtype, 0, capability, source, options, str(width))


def prepare_variant(capability: int) -> Variant:
    numbers = ("packed_ptr", "length_ptr", "table_ptr")
    wide = ("previous_ptr", "id_ptr", "position_ptr", "slot_ptr")
    types = dict.fromkeys(numbers, "*i32") | dict.fromkeys(wide, "*i64")
    counts = ("num_tokens", "num_sequences", "num_rows", "tables_at", "table_width")
    source = make_source(prepare_step_kernel, types, {"TILE": TILE}, counts)
    return Variant("prepare_step", "i32", 0, capability, source, {"num_warps": 4})


def store_variant(dtype: str, head_dim: int, capability: int, block_size: int) -> Variant:
    tile_heads, tile_dim = store_kv_tile(NUM_KV_HEADS, head_dim)
    types = dict.fromkeys(("k_ptr", "v_ptr", "pool_ptr"), f"*{dtype}") | {"slot_ptr": "*i64"}
    constants = {"NUM_HEADS": NUM_KV_HEADS, "BLOCK_SIZE": block_size, "HEAD_DIM": head_dim}
    constants |= {"TILE_HEADS": tile_heads, "TILE_DIM": tile_dim}
    source = make_source(store_kv_kernel, types, constants)
    options = {"num_warps": num_warps(tile_heads * tile_dim)}
    return Variant("store_kv", dtype, head_dim, capability, source, options, f"block {block_size}")


def rope_variant(
    dtype: str, head_dim: int, capability: int, block_size: int, *, norm: bool
) -> Variant:
    all_heads = NUM_HEADS + 2 * NUM_KV_HEADS
    tile_heads, tile_half, warps = rope_store_tile(all_heads, head_dim)
    names = ("qkv_ptr", "norm_ptr", "pool_ptr", "query_ptr")
    types = dict.fromkeys(names, f"*{dtype}") | dict.fromkeys(("cos_ptr", "sin_ptr"), "*fp32")
    types |= dict.fromkeys(("position_ptr", "slot_ptr"), "*i64") | {"eps": "fp32"}
    constants = {"NUM_HEADS": NUM_HEADS, "NUM_KV_HEADS": NUM_KV_HEADS, "HEAD_DIM": head_dim}
    constants |= {"BLOCK_SIZE": block_size, "TILE_HEADS": tile_heads, "TILE_HALF": tile_half}
    constants |= {"NORM": norm, "OVERLAP": capability >= OVERLAPPING}
    source = make_source(rope_store_kernel, types, constants)
    options = {"num_warps": warps, "launch_pdl": capability >= OVERLAPPING}
    detail = f"block {block_size}{' norm' * norm}"
    return Variant("rope_store", dtype, head_dim, capability, source, options, detail)
