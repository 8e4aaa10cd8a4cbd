"""How paged_decode is cut and launched: a table of measured choices, not autotuning. Imports no
triton."""

from dataclasses import dataclass
from typing import Any

import torch

from kernels.launching.launch import next_power_of_two, overlap_options

MIN_ROWS = 16
"""rows, and keys, of one product on the tensor cores"""
MERGED_PER_WARP = 1024
"""elements of parts that one warp adds up at once"""
MERGE_WARPS = 4
"""of the separate merge kernel"""
ROW_BYTES = 256
"""bytes of one key (128 elements of 16 bits) that the table's tiles are meant for"""


@dataclass(frozen=True)
class DecodeTile:
    """Shape of one launch."""

    num_keys: int
    """keys of one tile"""
    num_warps: int
    num_stages: int
    num_programs: int
    """programs of the fixed grid, if the batch has no more rows"""
    num_resident: int = 0
    """programs that run at once, 0 for all: heads that need more than one program each are shared
    by this many only, at most `num_programs`"""
    least_run: int = 1
    """tiles of keys that a program takes at least: the fewer programs, the fewer parts to add"""
    merge_apart: bool = False
    """parts are added by a second kernel, not by the last program of a head to finish"""
    max_registers: int = 0
    """of one thread, 0 to leave it to the compiler: fewer let more programs share a
    multiprocessor"""
    overlap: bool = False
    """programmatic dependent launch, from sm_90 on: a program reads its plan, the lengths and the
    block tables while the kernel before it still runs. Whatever wrote these, `DecodePlan.fill`
    too, must not be that kernel"""

    def __post_init__(self) -> None:
        if self.num_resident > self.num_programs:
            raise ValueError(f"{self.num_resident} of {self.num_programs} programs run at once")

    @property
    def launch_options(self) -> dict[str, Any]:
        """Triton's, for paged_decode_kernel."""
        options: dict[str, Any] = {"num_warps": self.num_warps, "num_stages": self.num_stages}
        if self.max_registers:
            options["maxnreg"] = self.max_registers
        return options | overlap_options(self.overlap)


@dataclass(frozen=True)
class TileRow:
    """A row of the table: up to this many heads per multiprocessor, this tile."""

    max_heads: float
    """(KV heads) x (sequences) per multiprocessor"""
    num_keys: int
    num_warps: int
    num_stages: int
    programs: int
    """per multiprocessor"""
    resident: int = 0
    least_run: int = 1
    merge_apart: bool = False
    max_registers: int = 0


TILES = (
    TileRow(0.1, 16, 1, 3, programs=3, least_run=3, merge_apart=True),
    TileRow(0.7, 16, 1, 3, programs=4, least_run=3, merge_apart=True),
    TileRow(1.8, 16, 1, 3, programs=4),
    TileRow(2.0, 64, 4, 3, programs=2, max_registers=255),
    TileRow(3.6, 16, 1, 3, programs=4),
    TileRow(4.0, 32, 4, 3, programs=4, max_registers=128),
    TileRow(7.0, 16, 1, 3, programs=4),
    TileRow(8.0, 32, 4, 3, programs=8, resident=4, max_registers=128),
    TileRow(float("inf"), 16, 1, 3, programs=8),
)
"""Measured on an H200. Heads of equal length that just fill 2, 4 or 8 programs per multiprocessor
are not split at all, which a tile with that many programs serves best; else small tiles of one
warp, for nothing waits inside a warp. Below one head per multiprocessor all heads are split in many
parts, and a kernel of their own adds them faster than one program per head. It adds up to 32 parts
at once, which is why no program takes fewer than three tiles of a short context there."""
WIDE = TileRow(float("inf"), 32, 4, 3, programs=3)
"""head_dim 256: one warp has no registers for it"""
EXACT = TileRow(float("inf"), 16, 4, 2, programs=4)
"""float32 without tensor cores: for tests, compiled in a second"""


def decode_tile(
    num_rows: int, kv_pool: torch.Tensor, num_multiprocessors: int, overlap: bool = False
) -> DecodeTile:
    """For batches of `num_rows` sequences over `kv_pool`, on a device with that many
    multiprocessors. `overlap` is the caller's promise, see DecodeTile."""
    num_kv_heads, _, head_dim = kv_pool.shape[3:]
    row_bytes = next_power_of_two(head_dim) * kv_pool.element_size()
    heads = num_rows * num_kv_heads / num_multiprocessors
    if kv_pool.dtype is torch.float32:
        row = EXACT
    elif row_bytes > ROW_BYTES:
        row = WIDE
    else:
        row = next(row for row in TILES if heads <= row.max_heads)
    # Half as wide a head, twice as many keys: the same bytes in flight.
    num_keys = min(128, row.num_keys * ROW_BYTES // row_bytes) if row in TILES else row.num_keys
    return DecodeTile(
        num_keys=num_keys,
        num_warps=row.num_warps,
        num_stages=row.num_stages,
        num_programs=row.programs * num_multiprocessors,
        num_resident=row.resident * num_multiprocessors,
        least_run=row.least_run,
        merge_apart=row.merge_apart,
        max_registers=row.max_registers,
        overlap=overlap,
    )


def tile_rows(group: int, exact: bool) -> int:
    """Rows of one product: the query heads of one KV head, padded for the tensor cores."""
    return next_power_of_two(group) if exact else max(MIN_ROWS, next_power_of_two(group))


def tile_parts(row_elements: int, num_warps: int) -> int:
    """Parts of `row_elements` floats added up at once."""
    return max(1, min(64, MERGED_PER_WARP * num_warps // next_power_of_two(row_elements)))
