"""How skinny_linear is cut and launched: a table of measured choices, not autotuning. Imports no
triton."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch

from kernels.launching.known_launches import KnownLaunches
from kernels.launching.launch import next_power_of_two, overlap_options

MAX_ROWS = 256
MIN_TILE_ROWS = 16
MAX_PORTABLE_ROWS = 64
MAX_PIECES = 3
"""powers of two that the columns of a tile of the form for Hopper are the sum of"""
MIN_HOPPER_ROWS = 8
MAX_WIDTH = 128
"""output columns of a tile of that form; gated, twice as many rows of W"""
HOPPER_PANEL = 64
SHARED_BYTES = 227 * 1024
"""of one multiprocessor of an H100 or H200 for programs"""
RESERVED_BYTES = 3 * 1024
"""of a program, for barriers and what the driver takes"""
MIN_PRODUCT_ROWS = 64
"""of that form: one warp group's"""
MIN_STAGES = {1: 3, 2: 4}
"""units of the ring, by the number of programs that share a multiprocessor"""
MAX_STAGES = 16
SMALL_BYTES = 2**24
"""of weights: below, what counts is how soon a kernel begins, not how much of it is in flight"""


@dataclass(frozen=True)
class SkinnyTile:
    """Shape of one launch."""

    num_columns: int
    """weight rows of one tile; gated, half of them gate and half of them up rows"""
    num_inputs: int
    """input columns of one unit of work"""
    num_warps: int
    num_stages: int
    num_programs: int
    """programs of the fixed grid, at most: a small product has fewer units"""
    num_rows: int
    """rows of x, rounded up to a power of two from 16 on"""
    hopper: bool = False
    """the form for Hopper: num_inputs is a multiple of 64, num_warps are those that multiply"""
    num_resident: int = 1
    """programs that a multiprocessor has room for: with two the next kernel's can begin next to
    this one's; only with `hopper`"""
    overlap: bool = False
    """programmatic dependent launch, from sm_90 on: with `hopper` weights and norm weights are read
    while the kernel before still runs. So that kernel must not be the one that writes them"""

    @property
    def part_elements(self) -> int:
        """Floats of one program's share of a tile."""
        return self.num_columns * self.num_rows

    @property
    def unit_bytes(self) -> int:
        """Of weights and x of one unit in 16 bits."""
        return self.num_inputs * (self.num_columns + self.num_rows) * 2

    def stages_beside(self, other_bytes: int) -> int:
        """Units of the ring in shared memory, with `hopper`, when `other_bytes` of it are taken."""
        beyond = max(0, MIN_PRODUCT_ROWS - self.num_rows) * HOPPER_PANEL * 2
        room = SHARED_BYTES // self.num_resident - RESERVED_BYTES - beyond - other_bytes
        return min(self.num_stages, room // self.unit_bytes)

    @property
    def launch_options(self) -> dict[str, Any]:
        """Triton's."""
        options: dict[str, Any] = {"num_warps": self.num_warps, "num_stages": self.num_stages}
        return options | overlap_options(self.overlap)


class Fused(NamedTuple):
    """What one launch does besides the product."""

    bias: bool
    eps: float | None
    """of the norm of x's rows before it; None without one"""
    residual: bool
    gated: bool


@dataclass(frozen=True)
class SkinnyWorkspace:
    """Memory programs leave parts of tiles in. Allocated once per stream: launches share it one
    after the other."""

    parts: torch.Tensor
    """f32[elements]: unscaled products of part of the inputs"""
    squares: torch.Tensor
    """f32[elements]: each part's sums of squares, one per row of x"""
    arrivals: torch.Tensor
    """i32[programs]: parts that have arrived for the tile a program ends with; zero between
    calls, since the last to arrive resets it"""
    launches: KnownLaunches = field(default_factory=KnownLaunches, init=False)
    """of skinny_linear"""

    @property
    def num_bytes(self) -> int:
        held = (self.parts, self.squares, self.arrivals)
        return sum(item.numel() * item.element_size() for item in held)

    @classmethod
    def allocate(
        cls, tiles: Iterable[SkinnyTile | None], device: torch.device | str
    ) -> "SkinnyWorkspace":
        """For every launch with one of `tiles`. The form for Hopper needs no memory."""
        used = [tile for tile in tiles if tile is not None and not tile.hopper]
        programs = max((tile.num_programs for tile in used), default=1)
        parts = max((2 * tile.num_programs * tile.part_elements for tile in used), default=1)
        squares = max((2 * tile.num_programs * tile.num_rows for tile in used), default=1)
        return cls(
            parts=torch.empty(parts, dtype=torch.float32, device=device),
            squares=torch.empty(squares, dtype=torch.float32, device=device),
            arrivals=torch.zeros(programs, dtype=torch.int32, device=device),
        )

    def fits(self, tile: SkinnyTile) -> bool:
        """Whether it is large enough for launches with this tile."""
        return tile.hopper or (
            self.arrivals.numel() >= tile.num_programs
            and self.parts.numel() >= 2 * tile.num_programs * tile.part_elements
            and self.squares.numel() >= 2 * tile.num_programs * tile.num_rows
        )

    def check_fits(self, tile: SkinnyTile) -> None:
        """ValueError if it was allocated for smaller tiles only."""
        if not self.fits(tile):
            raise ValueError(f"the workspace was not allocated for {tile}")


def padded_rows(num_rows: int) -> int:
    """Rows the tensor cores compute for a batch of `num_rows`."""
    return max(MIN_TILE_ROWS, next_power_of_two(num_rows))


def column_pieces(width: int) -> tuple[int, ...]:
    """Powers of two, from 8 on, that a tile's columns are made of. ValueError for a width of
    more than three."""
    pieces = [1 << bit for bit in reversed(range(3, 8)) if width >> bit & 1]
    if sum(pieces) != width or not 1 <= len(pieces) <= MAX_PIECES:
        raise ValueError(f"{width} columns are not one to three powers of two from 8 to 128")
    return tuple(pieces)


def hopper_tile(
    num_rows: int,
    columns: int,
    num_panels: int,
    num_resident: int,
    *,
    gated: bool,
    num_multiprocessors: int,
    overlap: bool,
) -> SkinnyTile:
    """For outputs of `columns`, in units of that number of panels of inputs, or fewer if the ring
    would have too few of them."""
    rows = max(MIN_HOPPER_ROWS, next_power_of_two(num_rows))
    width = tile_width(columns, num_multiprocessors)
    least = MIN_STAGES[num_resident]
    tile = None
    while tile is None or (tile.num_stages < least and num_panels > 1):
        num_panels //= 1 if tile is None else 2
        tile = SkinnyTile(
            num_columns=width * (1 + gated),
            num_inputs=num_panels * HOPPER_PANEL,
            num_warps=8 if rows > 64 else 4,
            num_stages=MAX_STAGES,
            num_programs=num_multiprocessors,
            num_rows=rows,
            hopper=True,
            num_resident=num_resident,
            overlap=overlap,
        )
        tile = replace(tile, num_stages=tile.stages_beside(0))
    return tile


def tile_width(columns: int, num_programs: int) -> int:
    """Columns of a tile that give the programs shares as equal as possible."""
    num_tiles = 1
    while True:
        width = -(-columns // (num_programs * num_tiles * 8)) * 8
        while width <= MAX_WIDTH and width.bit_count() > MAX_PIECES:
            width += 8
        if width <= MAX_WIDTH:
            return width
        num_tiles += 1


def skinny_tile(
    num_rows: int,
    weight_shape: tuple[int, int],
    dtype: torch.dtype,
    *,
    gated: bool = False,
    norm: bool = False,
    capability: tuple[int, int] = (9, 0),
    num_multiprocessors: int = 132,
    overlap: bool = False,
) -> SkinnyTile | None:
    """For x of `num_rows` rows and a weight of that shape, or None where torch's own product is
    faster. `norm`: skinny_linear is to do the norm as well. `overlap` is the caller's promise, see
    SkinnyTile."""
    if not 1 <= num_rows <= MAX_ROWS:
        return None
    rows = padded_rows(num_rows)
    if dtype is torch.float32:
        return SkinnyTile(32, 32, 4, 1, 2 * num_multiprocessors, rows, overlap=overlap)
    if capability[0] != 9 or weight_shape[1] % 8:
        if rows > MAX_PORTABLE_ROWS:
            return None
        return SkinnyTile(64, 128, 4, 3, 2 * num_multiprocessors, rows, overlap=overlap)
    return _measured(
        num_rows,
        weight_shape,
        gated=gated,
        norm=norm,
        num_multiprocessors=num_multiprocessors,
        overlap=overlap,
    )


def _measured(
    num_rows: int,
    weight_shape: tuple[int, int],
    *,
    gated: bool,
    norm: bool,
    num_multiprocessors: int,
    overlap: bool,
) -> SkinnyTile | None:
    """On an H200, 16-bit types."""
    few = num_rows <= 32
    small = weight_shape[0] * weight_shape[1] * 2 <= SMALL_BYTES
    columns = weight_shape[0] // (1 + gated)
    wide = tile_width(columns, num_multiprocessors) * (1 + gated) > 64
    if num_rows > 64 or (not few and norm and not gated):
        return None
    # The more panels in a unit, the more bytes of a row are read at once; the memory likes that.
    num_panels = 4 if few or small else 2
    if wide:
        num_panels = 2 if few or not gated else 1
    return hopper_tile(
        num_rows,
        columns,
        num_panels,
        2 if small and not wide else 1,  # wide products have no registers for two
        gated=gated,
        num_multiprocessors=num_multiprocessors,
        overlap=overlap,
    )
