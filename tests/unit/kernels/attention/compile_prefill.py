"""Variants of paged_prefill in both forms: compile_all.py compiles them."""

from collections.abc import Iterator

from triton.experimental.gluon.language import NVMMASharedLayout

from kernels.attention.paged_prefill import paged_prefill_kernel
from kernels.attention.paged_prefill_hopper import paged_prefill_hopper_kernel
from kernels.attention.prefill_plan import (
    HOPPER_KEYS,
    HOPPER_STAGES,
    ITEM_FIELDS,
    padded_dim,
    panel_columns,
    portable_tile,
)
from kernels.launching.launch import next_power_of_two
from tests.unit.kernels.variant import (
    BLOCK_SIZES,
    DTYPES,
    Variant,
    combinations,
    make_source,
    pairs,
)

HOPPER = 90
POINTERS = {"table_ptr": "*i32", "item_ptr": "*i32", "scale": "fp32"}
UNALIGNED = ("window", "section", "table_stride")


def variants() -> Iterator[Variant]:
    """The portable form for all generations, Hopper's for its own; half of them with a window."""
    for number, head_dim, dtype, capability in pairs():
        block_size, window = choice(number)
        yield portable_variant(dtype, head_dim, capability, block_size, window)
    for number, head_dim, dtype, capability in combinations():
        if capability == HOPPER and DTYPES[dtype].itemsize == 2:
            block_size, window = choice(number)
            yield hopper_variant(dtype, head_dim, block_size, not window)


def choice(number: int) -> tuple[int, bool]:
    """(block size, whether there is a window)."""
    return BLOCK_SIZES[number % len(BLOCK_SIZES)], number % 2 == 0


def portable_variant(
    dtype: str, head_dim: int, capability: int, block_size: int, window: bool
) -> Variant:
    tile = portable_tile(DTYPES[dtype], head_dim)
    constants = {
        "GROUP": 4,
        "FIELDS": ITEM_FIELDS,
        "BLOCK_SIZE": block_size,
        "HEAD_DIM": head_dim,
        "TILE_ROWS": tile.num_rows,
        "TILE_KEYS": tile.num_keys,
        "TILE_DIM": next_power_of_two(head_dim),
        "PRECISION": "ieee" if dtype == "fp32" else "tf32",
        "WINDOW": window,
    }
    types = POINTERS | dict.fromkeys(("q_ptr", "pool_ptr", "output_ptr"), f"*{dtype}")
    source = make_source(paged_prefill_kernel, types, constants, UNALIGNED)
    options = {"num_warps": tile.num_warps, "num_stages": tile.num_stages}
    detail = f"block {block_size}{' window' * window}"
    return Variant("paged_prefill", dtype, head_dim, capability, source, options, detail)


def hopper_variant(dtype: str, head_dim: int, block_size: int, window: bool) -> Variant:
    panel, padded = panel_columns(head_dim), padded_dim(head_dim)
    box = [block_size // 8, padded // panel, 8, panel]
    constants = {
        "NUM_KV_HEADS": 8,
        "GROUP": 4,
        "FIELDS": ITEM_FIELDS,
        "BLOCK_SIZE": block_size,
        "HEAD_DIM": head_dim,
        "TILE_KEYS": HOPPER_KEYS[padded],
        "TILE_DIM": padded,
        "STAGES": HOPPER_STAGES,
        "WINDOW": window,
    }
    layout = NVMMASharedLayout(2 * panel, 16, 4)
    types = POINTERS | dict.fromkeys(("q_ptr", "output_ptr"), f"*{dtype}")
    types |= {"kv_desc": f"tensordesc<{dtype}{box},{layout!r}>"}
    source = make_source(paged_prefill_hopper_kernel, types, constants, UNALIGNED, gluon=True)
    options = {"num_warps": 4}
    detail = f"block {block_size}{' window' * window}"
    return Variant("paged_prefill_hopper", dtype, head_dim, HOPPER, source, options, detail)
