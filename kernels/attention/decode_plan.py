"""How one step's decoding sequences are cut among the programs of paged_decode.

A unit is one tile of keys of one KV head of one sequence. All units of a batch stand in one line:
sequence after sequence, head after head, tile after tile. Program p takes units
[p * run, (p + 1) * run). The cut depends on lengths, which only the GPU knows when a captured
graph is replayed, so a kernel makes it, once per step for all layers.
"""

from dataclasses import dataclass, field

import torch
import triton
import triton.language as tl

from kernels.attention.decode_tiles import DecodeTile
from kernels.launching.known_launches import KnownLaunches
from kernels.launching.launch import ceil_div, next_power_of_two

PLAN_FIELDS = 8
"""row, KV head and tile of the first unit, number of units, run, the row's length, whether row
`program` is empty; the last is unused"""
WHOLE = 2**30
"""a window that hides nothing"""
MAX_PLANNED = 8192
"""(programs) x (sequences) one program of the planning kernel compares at once"""


@triton.jit
def num_tiles_of(length, window, TILE_KEYS: tl.constexpr):
    """First visible key, the tile it lies in, and how many tiles a sequence's keys are in."""
    first_key = tl.maximum(length - window, 0)
    first_tile = first_key // TILE_KEYS
    return first_key, first_tile, (length + TILE_KEYS - 1) // TILE_KEYS - first_tile


@triton.jit(do_not_specialize=["num_rows", "num_programs", "num_resident", "least_run"])
def plan_kernel(
    length_ptr,
    plan_ptr,
    start_ptr,
    num_rows,
    num_programs,
    num_resident,
    least_run,
    window,
    NUM_KV_HEADS: tl.constexpr,
    TILE_KEYS: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_PROGRAMS: tl.constexpr,
    FIELDS: tl.constexpr,
):
    """Grid (tiles of programs,); TILE_ROWS covers all sequences."""
    rows = tl.arange(0, TILE_ROWS)
    lengths = tl.load(length_ptr + rows, rows < num_rows, other=0)
    _, _, tiles = num_tiles_of(lengths, window, TILE_KEYS)
    ends = tl.cumsum(tiles, 0) * NUM_KV_HEADS
    starts = ends - tiles * NUM_KV_HEADS
    num_units = tl.sum(tiles, 0) * NUM_KV_HEADS
    longest = tl.max(tiles, 0)
    least = tl.maximum(tl.minimum(least_run, longest), 1)  # where no head is cut, nothing is added
    run = tl.maximum((num_units + num_programs - 1) // num_programs, least)
    if longest > run:
        run = tl.maximum((num_units + num_resident - 1) // num_resident, least)

    programs = tl.program_id(0) * TILE_PROGRAMS + tl.arange(0, TILE_PROGRAMS)
    firsts = programs * run
    own = (starts[None, :] <= firsts[:, None]) & (firsts[:, None] < ends[None, :])
    row = tl.sum(tl.where(own, rows[None, :], 0), 1)
    within = firsts - tl.sum(tl.where(own, starts[None, :], 0), 1)
    tiles_of = tl.maximum(tl.sum(tl.where(own, tiles[None, :], 0), 1), 1)
    length = tl.sum(tl.where(own, lengths[None, :], 0), 1)
    same = (rows[None, :] == programs[:, None]) & (lengths[None, :] == 0)
    empty = tl.sum(same.to(tl.int32), 1) * (programs < num_rows).to(tl.int32)

    entry = plan_ptr + programs * FIELDS
    real = programs < num_programs
    tl.store(entry, row, real)
    tl.store(entry + 1, within // tiles_of, real)
    tl.store(entry + 2, within % tiles_of, real)
    tl.store(entry + 3, tl.minimum(tl.maximum(num_units - firsts, 0), run), real)
    tl.store(entry + 4, run + tl.zeros_like(row), real)
    tl.store(entry + 5, length, real)
    tl.store(entry + 6, empty, real)
    if tl.program_id(0) == 0:
        tl.store(start_ptr + rows, starts, rows < num_rows)


@dataclass(frozen=True)
class DecodePlan:
    """Where the programs begin, and the memory they leave parts in. Allocated once; `fill` rewrites
    the entries from `context_lens` and may be captured in a graph."""

    tile: DecodeTile
    num_kv_heads: int
    context_lens: torch.Tensor
    """i32[B], read by every `fill` and every layer"""
    window: int
    """keys a row sees, its own included; 0 for all"""
    entries: torch.Tensor
    """i32[programs, PLAN_FIELDS]"""
    starts: torch.Tensor
    """i32[B], each row's first unit"""
    parts: torch.Tensor
    """f32[2 * programs, rows per KV head, head_dim], unnormalised sums"""
    stats: torch.Tensor
    """f32[2 * programs, 2, rows per KV head]: each part's maximum and sum of weights"""
    arrivals: torch.Tensor
    """i32[programs]: parts that have arrived for the head a program ends with; zero between
    calls, since the last to arrive resets it"""
    launches: KnownLaunches = field(default_factory=KnownLaunches, init=False)
    """of paged_decode"""

    @property
    def num_programs(self) -> int:
        return self.entries.shape[0]

    @property
    def window_keys(self) -> int:
        return self.window or WHOLE

    @property
    def num_bytes(self) -> int:
        """Memory held besides `context_lens`."""
        held = (self.entries, self.starts, self.parts, self.stats, self.arrivals)
        return sum(item.numel() * item.element_size() for item in held)

    @classmethod
    def allocate(
        cls,
        context_lens: torch.Tensor,
        num_heads: int,
        kv_pool: torch.Tensor,
        tile: DecodeTile,
        window: int = 0,
    ) -> "DecodePlan":
        """A plan for batches of context_lens.shape[0] rows. One per stream: the layers share it one
        after the other."""
        if context_lens.dtype is not torch.int32 or context_lens.dim() != 1:
            raise TypeError(f"context_lens is {context_lens.dtype}{tuple(context_lens.shape)}")
        num_kv_heads, _, head_dim = kv_pool.shape[3:]
        if num_heads % num_kv_heads:
            raise ValueError(f"{num_heads} heads over {num_kv_heads} KV heads")
        device = context_lens.device
        num_programs = max(tile.num_programs, context_lens.shape[0])
        slots, group = 2 * num_programs, num_heads // num_kv_heads
        return cls(
            tile=tile,
            num_kv_heads=num_kv_heads,
            context_lens=context_lens,
            window=window,
            entries=torch.zeros(num_programs, PLAN_FIELDS, dtype=torch.int32, device=device),
            starts=torch.zeros_like(context_lens),
            parts=torch.empty(slots, group, head_dim, dtype=torch.float32, device=device),
            stats=torch.empty(slots, 2, group, dtype=torch.float32, device=device),
            arrivals=torch.zeros(num_programs, dtype=torch.int32, device=device),
        )

    def fill(self) -> None:
        """Cut the sequences as long as they are now; before the first layer of every step."""
        num_rows = self.context_lens.shape[0]
        tile_rows = max(16, next_power_of_two(num_rows))
        tile_programs = max(1, min(16, MAX_PLANNED // tile_rows))
        plan_kernel[(ceil_div(self.num_programs, tile_programs),)](
            self.context_lens,
            self.entries,
            self.starts,
            num_rows,
            self.num_programs,
            self.tile.num_resident or self.num_programs,
            self.tile.least_run,
            self.window_keys,
            NUM_KV_HEADS=self.num_kv_heads,
            TILE_KEYS=self.tile.num_keys,
            TILE_ROWS=tile_rows,
            TILE_PROGRAMS=tile_programs,
            FIELDS=PLAN_FIELDS,
            num_warps=4,
        )
