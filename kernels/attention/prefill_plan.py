"""How one step's prompt chunks are cut among the programs of paged_prefill.

An item is one tile of query rows of one sequence; every item is computed once per query head, by
a program of its own. Programs start in the order of their numbers, so items with the most keys
stand first and the last to start are short. The host knows all lengths, so it makes the list:
one small copy to the device per step, nothing read back.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from kernels.launching.known_launches import KnownLaunches
from kernels.launching.launch import next_power_of_two

HOPPER_ROWS = 128
"""query rows of one program of the form for Hopper: 64 for each of two groups of warps"""
HOPPER_KEYS = {64: 128, 128: 128, 256: 64}
"""keys of one tile, by padded head size: two tiles of K and of V fit in shared memory"""
HOPPER_STAGES = 2
ITEM_FIELDS = 8
"""first row of the sequence in q, its rows, the item's first of them, its positions after the
step, its number; rest unused"""
MAX_SECTION_BYTES = 32 * 2**20
"""K and V that programs running at the same time read again and again: half an H200's L2"""
WHOLE = 2**30
"""a window that hides nothing"""


@dataclass(frozen=True)
class PrefillTile:
    """How one launch is shaped."""

    num_rows: int
    """query rows of one program"""
    num_keys: int
    """keys of one tile"""
    num_warps: int
    num_stages: int
    hopper: bool = False
    """the form for Hopper's tensor cores"""


@dataclass(frozen=True)
class PrefillPlan:
    """The work list of one step, the same for all layers with the same window."""

    tile: PrefillTile
    items: torch.Tensor
    """i32[N, ITEM_FIELDS], most keys first"""
    num_rows: int
    """query rows of all sequences"""
    num_sequences: int
    num_heads: int
    num_kv_heads: int
    section: int
    """query heads that go through the list together, so that their K and V stay in the cache"""
    window: int
    """keys a row sees, its own included; 0 for all"""
    launches: KnownLaunches = field(default_factory=KnownLaunches, init=False)
    """of paged_prefill, which go with the plan since they name a pool"""

    @property
    def window_keys(self) -> int:
        return self.window or WHOLE

    @classmethod
    def build(
        cls,
        query_lens: Sequence[int],
        context_lens: Sequence[int],
        num_heads: int,
        kv_pool: torch.Tensor,
        window: int = 0,
        tile: PrefillTile | None = None,
    ) -> "PrefillPlan":
        """query_lens: rows of each sequence, 0 allowed; context_lens: its positions after the
        step. ValueError if a sequence has more rows than positions."""
        if any(rows > length for rows, length in zip(query_lens, context_lens, strict=True)):
            raise ValueError(f"query_lens {query_lens} above context_lens {context_lens}")
        tile = tile or prefill_tile(kv_pool)
        items = work_items(query_lens, context_lens, tile.num_rows, window)
        listed = torch.tensor(items, dtype=torch.int32).view(-1, ITEM_FIELDS)
        if kv_pool.is_cuda:
            listed = listed.pin_memory()
        most_keys = max(context_lens, default=0)
        return cls(
            tile=tile,
            items=listed.to(kv_pool.device, non_blocking=True),
            num_rows=sum(query_lens),
            num_sequences=len(query_lens),
            num_heads=num_heads,
            num_kv_heads=kv_pool.shape[3],
            section=section_heads(num_heads, min(most_keys, window or most_keys), kv_pool),
            window=window,
        )


def work_items(
    query_lens: Sequence[int], context_lens: Sequence[int], tile_rows: int, window: int
) -> list[tuple[int, ...]]:
    """ITEM_FIELDS of all tiles of query rows, most visible keys first."""
    weighted = []
    start = 0
    for sequence, (num_rows, length) in enumerate(zip(query_lens, context_lens, strict=True)):
        for row in range(0, num_rows, tile_rows):
            keys = length - num_rows + min(row + tile_rows, num_rows)
            fields = (start, num_rows, row, length, sequence, 0, 0, 0)
            weighted.append((-min(keys, window + tile_rows if window else keys), fields))
        start += num_rows
    return [fields for _, fields in sorted(weighted)]


def section_heads(num_heads: int, num_keys: int, kv_pool: torch.Tensor) -> int:
    """Query heads per section: a divisor of num_heads, whole KV heads, K and V of the longest
    sequence within MAX_SECTION_BYTES."""
    num_kv_heads, _, head_dim = kv_pool.shape[3:]
    group = num_heads // num_kv_heads
    head_bytes = max(1, 2 * num_keys * head_dim * kv_pool.element_size())
    most = max(1, MAX_SECTION_BYTES // head_bytes)
    return group * max(
        size for size in range(1, num_kv_heads + 1) if num_kv_heads % size == 0 and size <= most
    )


def prefill_tile(kv_pool: torch.Tensor, capability: tuple[int, int] | None = None) -> PrefillTile:
    """The measured choice for the pool's device, type, head and block size. `capability`: default:
    the device's."""
    if kv_pool.device.type == "cpu":
        return PrefillTile(num_rows=16, num_keys=16, num_warps=4, num_stages=1)
    if capability is None:
        capability = torch.cuda.get_device_capability(kv_pool.device)
    block_size, head_dim = kv_pool.shape[4:]
    if capability[0] == 9 and fits_hopper(kv_pool.dtype, block_size, head_dim):
        return hopper_tile(head_dim)
    return portable_tile(kv_pool.dtype, head_dim)


def hopper_tile(head_dim: int) -> PrefillTile:
    """For blocks that fits_hopper."""
    keys = HOPPER_KEYS[padded_dim(head_dim)]
    return PrefillTile(HOPPER_ROWS, keys, num_warps=4, num_stages=HOPPER_STAGES, hopper=True)


def fits_hopper(dtype: torch.dtype, block_size: int, head_dim: int) -> bool:
    """Whether the tensor memory accelerator and the tensor cores can take such blocks."""
    blocks = 8 <= block_size <= 256 and block_size == next_power_of_two(block_size)
    return dtype.itemsize == 2 and blocks and head_dim % 16 == 0 and head_dim <= 256


def padded_dim(head_dim: int) -> int:
    """Elements of a row in shared memory: whole swizzled panels of 64."""
    return max(64, next_power_of_two(head_dim))


def panel_columns(head_dim: int) -> int:
    """Columns of a piece of a row that is swizzled as one: what divides the row."""
    return max(width for width in (16, 32, 64) if head_dim % width == 0)


def portable_tile(dtype: torch.dtype, head_dim: int) -> PrefillTile:
    """For any GPU from sm_80 on: within 99 KiB of shared memory, the least of them."""
    if dtype.itemsize == 4:
        rows = 32 if head_dim <= 128 else 16
        return PrefillTile(rows, num_keys=32, num_warps=4, num_stages=2)
    if head_dim <= 64:
        return PrefillTile(num_rows=64, num_keys=128, num_warps=4, num_stages=2)
    if head_dim <= 128:
        return PrefillTile(num_rows=128, num_keys=128, num_warps=8, num_stages=2)
    return PrefillTile(num_rows=64, num_keys=32, num_warps=4, num_stages=2)
