"""Attention over the paged KV pool in plain torch, behind the call a paged GPU kernel takes.

Keys are taken in tiles of TILE positions counted from the sequence's start. Each query row's
scores against a tile, its weights and the weighted values come from matrix products of fixed
inner size; a row's maximum is exact in any order; the tiles' parts are added from the first to
the last. So a row's bits depend on its own position and keys only, not on chunk borders, blocks
or batch mates, and a tile that is masked for a row adds exact zeros. A sliding window hides the
keys left of it. Tiles it hides from all rows of a product are left out, for those zeros are exact.

Many tiles go through one batched product. All decoding sequences of a step share it: their
tiles are laid out tile number first, longest sequence first, so that "tile t of all sequences
that have one" is a contiguous run, and adding tile by tile is a loop over runs.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Protocol

import torch

from shared.engine.layers.batch_tensors import BatchTensors

TILE = 64
"""keys per tile"""
MAX_SCORES = 2**20
"""scores computed at once; bounds the memory of a step, not its result"""
MAX_GATHERED = 2**21
"""KV elements gathered at once for decoding sequences, and kept as workspace between calls:
fresh memory of that size costs a page fault per 4 KiB, more than the copy itself"""
MAX_ROWS = 64
"""query rows of one prompt chunk taken together: more would score more keys after their end"""


class Attention(Protocol):
    """The call every backend answers."""

    def __call__(
        self,
        queries: torch.Tensor,
        kv_pool: torch.Tensor,
        layer: int,
        batch: BatchTensors,
        scale: float,
        window: int = 0,
    ) -> torch.Tensor:
        """Causal attention of queries [T, num_heads, head_dim] over each row's own sequence,
        whose K and V, this step's included, are in the pool: over all of it, or over the last
        `window` positions up to the row's own. Rows past the last sequence's give zeros.
        Returns [T, num_heads, head_dim]."""


@dataclass(frozen=True)
class RowGroup:
    """Query rows that go through one batched product: R rows of each of S sequences."""

    rows: torch.Tensor
    """i64[S * R], rows of the batch"""
    tiles: slice
    """the num_tiles of the gathered ones that these rows need"""
    tile_sequence: torch.Tensor
    """i64[num_tiles], which of the S sequences a tile belongs to"""
    runs: tuple[int, ...]
    """sequences that have a tile 0, a tile 1, ...: falling, their sum is num_tiles"""
    masked: torch.Tensor | slice
    """the N tiles that some row must not see all of"""
    hidden: torch.Tensor
    """bool[N, R, TILE], the keys it must not see"""


@dataclass(frozen=True)
class Gather:
    """Tiles read from the pool once per layer, and the rows that attend to them."""

    granules: torch.Tensor
    """i64[2, num_tiles, num_kv_heads, TILE / granule]: which granule of layer 0 of the pool"""
    unwritten_tiles: torch.Tensor
    """i64[S], tiles that end a sequence"""
    unwritten: torch.Tensor
    """bool[S, TILE], their keys past the sequence's end: never written, maybe not even finite"""
    row_groups: tuple[RowGroup, ...]


class TiledAttention:
    """The tiled form above for any device. Keeps the index tensors of the last batch, since
    all layers of a step with the same window use the same, and a workspace."""

    def __init__(self) -> None:
        self._batch: BatchTensors | None = None
        self._gathers: dict[int, tuple[Gather, ...]] = {}
        """per window"""
        self._workspace = torch.empty(0)

    def __call__(
        self,
        queries: torch.Tensor,
        kv_pool: torch.Tensor,
        layer: int,
        batch: BatchTensors,
        scale: float,
        window: int = 0,
    ) -> torch.Tensor:
        if self._batch is not batch:
            self._gathers.clear()
            self._batch = batch
        if window not in self._gathers:
            planned = plan_gathers(batch, kv_pool.shape, queries.shape[1], window)
            self._gathers[window] = tuple(planned)
        output = torch.zeros_like(queries)
        scaled = (queries * scale).float()
        for gather in self._gathers[window]:
            keys, values = self._gather_tiles(kv_pool, layer, gather)
            for group in gather.row_groups:
                output[group.rows] = _attend(scaled[group.rows], keys, values, group).to(
                    output.dtype
                )
        return output

    def _gather_tiles(
        self, kv_pool: torch.Tensor, layer: int, gather: Gather
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [num_tiles, num_kv_heads, TILE, head_dim] of one layer, in float32;
        valid until the next call."""
        _, num_tiles, num_kv_heads, per_tile = gather.granules.shape
        head_dim = kv_pool.shape[5]
        width = TILE // per_tile * head_dim
        chosen = (gather.granules + layer * (kv_pool[0, 0].numel() // width)).flatten()
        tiles = self._space(kv_pool, chosen.shape[0], width)
        torch.index_select(kv_pool.view(-1, width), 0, chosen, out=tiles)
        keys, values = tiles.float().view(2, num_tiles, num_kv_heads, TILE, head_dim)
        # 0 * NaN is NaN: a weight of zero does not silence a slot that was never written.
        ends = values[gather.unwritten_tiles]
        values[gather.unwritten_tiles] = ends.masked_fill_(gather.unwritten[:, None, :, None], 0.0)
        return keys, values

    def _space(self, kv_pool: torch.Tensor, num_rows: int, width: int) -> torch.Tensor:
        """Uninitialised [num_rows, width] like the pool, from the workspace if it may fit."""
        num_elements = num_rows * width
        if num_elements > MAX_GATHERED:
            return kv_pool.new_empty(num_rows, width)
        if self._workspace.numel() == 0:
            self._workspace = kv_pool.new_empty(MAX_GATHERED)
        return self._workspace[:num_elements].view(num_rows, width)


def plan_gathers(
    batch: BatchTensors, pool_shape: Sequence[int], num_heads: int, window: int
) -> Iterator[Gather]:
    """Index tensors of a batch: decoding sequences together, each prompt chunk alone."""
    starts = [0]
    for length in batch.query_lens:
        starts.append(starts[-1] + length)
    spans = {
        index: tile_span(batch.context_lens_host[index] - 1, window)
        for index, length in enumerate(batch.query_lens)
        if length == 1
    }
    for members in _decode_groups(spans, pool_shape):
        yield _plan_decode(members, starts, batch, pool_shape, window)
    for index, length in enumerate(batch.query_lens):
        if length > 1:
            yield _plan_chunk(index, starts[index], batch, pool_shape, num_heads, window)


def tile_span(position: int, window: int) -> range:
    """Numbers of the tiles that hold a key this position sees."""
    first = max(0, position - window + 1) if window else 0
    return range(first // TILE, position // TILE + 1)


def _decode_groups(
    spans: Mapping[int, range], pool_shape: Sequence[int]
) -> Iterator[dict[int, range]]:
    """Most tiles first, cut so that one group's KV stays under MAX_GATHERED elements."""
    tile_elements = 2 * pool_shape[3] * TILE * pool_shape[5]
    group: dict[int, range] = {}
    num_elements = 0
    for index, span in sorted(spans.items(), key=lambda item: -len(item[1])):
        wanted = len(span) * tile_elements
        if group and num_elements + wanted > MAX_GATHERED:
            yield group
            group, num_elements = {}, 0
        group[index] = span
        num_elements += wanted
    if group:
        yield group


def _plan_decode(
    members: Mapping[int, range],
    starts: Sequence[int],
    batch: BatchTensors,
    pool_shape: Sequence[int],
    window: int,
) -> Gather:
    """One row each of several sequences, most tiles first."""
    device = batch.input_ids.device
    counts = [len(span) for span in members.values()]
    runs = tuple(sum(count > step for count in counts) for step in range(counts[0]))
    slots = [slot for run in runs for slot in range(run)]
    first_of_run = [sum(runs[:step]) for step in range(len(runs))]
    last_tiles = [first_of_run[count - 1] + slot for slot, count in enumerate(counts)]
    spans = list(members.values())
    numbers = _index(
        [spans[slot][step] for step, run in enumerate(runs) for slot in range(run)], device
    )
    slot_of = _index(slots, device)
    own = _index([batch.context_lens_host[index] - 1 for index in members], device)
    # A window's left edge lies in a sequence's first tile, its right one always in the last.
    edges = sorted({*last_tiles, *(range(len(spans)) if window else ())})
    masked, last = _index(edges, device), _index(last_tiles, device)
    hidden = _hidden(numbers[masked], own[slot_of[masked], None], window)
    group = RowGroup(
        rows=_index([starts[index] for index in members], device),
        tiles=slice(0, len(slots)),
        tile_sequence=slot_of,
        runs=runs,
        masked=masked,
        hidden=hidden,
    )
    tables = batch.block_tables[_index(list(members), device)[slot_of]]
    granules = _granules(tables, numbers, pool_shape)
    return Gather(granules, last, _hidden(numbers[last], own[:, None])[:, 0], (group,))


def _plan_chunk(
    index: int,
    start: int,
    batch: BatchTensors,
    pool_shape: Sequence[int],
    num_heads: int,
    window: int,
) -> Gather:
    """Several rows of one sequence, at most MAX_ROWS at a time."""
    device = batch.input_ids.device
    length, context = batch.query_lens[index], batch.context_lens_host[index]
    before = context - length
    gathered = range(tile_span(before, window)[0], _num_tiles(context))
    numbers = torch.arange(gathered.start, gathered.stop, device=device)
    step = max(1, min(MAX_ROWS, MAX_SCORES // (len(gathered) * TILE * num_heads)))
    groups = []
    for first in range(0, length, step):
        last = min(first + step, length)
        seen = range(
            tile_span(before + first, window)[0], tile_span(before + last - 1, window)[-1] + 1
        )
        first_masked = (before + first) // TILE - seen.start
        masked: slice | torch.Tensor = slice(first_masked, len(seen))
        if window:  # the tiles at its left edge too
            left = max(0, (before + last - 1 - window) // TILE + 1 - seen.start)
            edges = [*range(min(left, first_masked)), *range(first_masked, len(seen))]
            masked = _index(edges, device)
        tiles = slice(seen.start - gathered.start, seen.stop - gathered.start)
        own = torch.arange(before + first, before + last, device=device)
        groups.append(
            RowGroup(
                rows=torch.arange(start + first, start + last, device=device),
                tiles=tiles,
                tile_sequence=torch.zeros(len(seen), dtype=torch.int64, device=device),
                runs=(1,) * len(seen),
                masked=masked,
                hidden=_hidden(numbers[tiles][masked], own[None], window),
            )
        )
    table = batch.block_tables[index].expand(len(gathered), -1)
    end = torch.full((1, 1), context - 1, device=device)
    last_tile = numbers[-1:] - gathered.start
    unwritten = _hidden(numbers[-1:], end)[:, 0]
    return Gather(_granules(table, numbers, pool_shape), last_tile, unwritten, tuple(groups))


def _hidden(numbers: torch.Tensor, own: torch.Tensor, window: int = 0) -> torch.Tensor:
    """bool[N, R, TILE]: keys of tiles `numbers` i64[N] that positions `own`, i64[N or 1, R],
    must not see, since they come later or lie left of the window."""
    offsets = torch.arange(TILE, device=numbers.device)
    keys = (numbers[:, None] * TILE + offsets)[:, None]
    own = own[..., None]
    hidden = keys > own
    return hidden | (keys <= own - window) if window else hidden


def _granules(
    tables: torch.Tensor, numbers: torch.Tensor, pool_shape: Sequence[int]
) -> torch.Tensor:
    """Where the keys of tile `numbers[i]` of the sequence with block table `tables[i]` lie.

    A granule is the longest run of positions that is contiguous in the pool and divides both
    block and tile. Positions past the table's end map to its last block; they are hidden.
    """
    _, num_layers, planes, num_kv_heads, block_size, _ = pool_shape
    granule = gcd(block_size, TILE)
    per_block = block_size // granule
    device = numbers.device
    within = torch.arange(TILE // granule, device=device)
    index = numbers[:, None] * (TILE // granule) + within
    columns = (index // per_block).clamp(max=tables.shape[1] - 1)
    blocks = tables.gather(1, columns).long()
    planes_at = torch.arange(planes, device=device)[:, None, None, None]
    heads_at = torch.arange(num_kv_heads, device=device)[:, None]
    in_layer = (planes_at * num_kv_heads + heads_at) * per_block
    block_start = blocks * (num_layers * planes * num_kv_heads * per_block) + index % per_block
    return block_start[None, :, None] + in_layer


def _attend(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, group: RowGroup
) -> torch.Tensor:
    """Softmax-weighted values [S * R, num_heads, head_dim] of scaled queries of that shape."""
    num_rows, num_heads, head_dim = queries.shape
    num_sequences, num_kv_heads = group.runs[0], keys.shape[1]
    per_sequence, group_size = num_rows // num_sequences, num_heads // num_kv_heads
    rows = _rows_per_kv_head(queries, num_sequences, num_kv_heads)
    width = rows.shape[2]
    keys, values = keys[group.tiles].flatten(0, 1), values[group.tiles].flatten(0, 1)
    by_tile = rows[group.tile_sequence].flatten(0, 1)
    scores = torch.bmm(by_tile, keys.transpose(1, 2)).view(-1, num_kv_heads, width, TILE)
    _mask(scores, group, per_sequence, group_size)
    maximum = _largest(scores.amax(-1), group.runs)
    weights = scores.sub_(maximum[group.tile_sequence].unsqueeze(-1)).exp_()
    mixed = torch.bmm(weights.flatten(0, 1), values).view(-1, num_kv_heads, width, head_dim)
    total = _added(weights.sum(-1), group.runs).unsqueeze(-1)
    result = _added(mixed, group.runs).div_(total)[:, :, : per_sequence * group_size]
    result = result.view(num_sequences, num_kv_heads, per_sequence, group_size, head_dim)
    return result.transpose(1, 2).reshape(num_rows, num_heads, head_dim)


def _mask(scores: torch.Tensor, group: RowGroup, per_sequence: int, group_size: int) -> None:
    """Set scores [num_tiles, num_kv_heads, rows, TILE] of keys a row must not see to -inf."""
    tiles = scores[group.masked]
    own = tiles[:, :, : per_sequence * group_size]
    own = own.view(-1, scores.shape[1], per_sequence, group_size, TILE)
    own.masked_fill_(group.hidden[:, None, :, None], float("-inf"))
    if isinstance(group.masked, torch.Tensor):
        scores[group.masked] = tiles


def _rows_per_kv_head(queries: torch.Tensor, num_sequences: int, num_kv_heads: int) -> torch.Tensor:
    """[S, num_kv_heads, rows, head_dim]: all rows that share a KV head, zero rows after them.

    As in layers.MIN_ROWS, too few rows would change the order of additions inside a product;
    how few depends on its inner size. MKL with AVX-512: under 3 rows at 64, 6 at 128, 11 at 256.
    """
    head_dim = queries.shape[-1]
    split = queries.view(
        num_sequences, -1, num_kv_heads, queries.shape[1] // num_kv_heads, head_dim
    )
    rows = split.transpose(1, 2).flatten(2, 3)
    missing = min_rows(head_dim) - rows.shape[2]
    if missing <= 0:
        return rows
    return torch.nn.functional.pad(rows, (0, 0, 0, missing))


def min_rows(head_dim: int) -> int:
    """Fewest query rows of a score product."""
    return 4 if head_dim <= TILE else 16


def _largest(parts: torch.Tensor, runs: Sequence[int]) -> torch.Tensor:
    """Per sequence the maximum over its tiles: [num_tiles, ...] -> [S, ...]."""
    result = parts[: runs[0]].clone()
    start = runs[0]
    for run in runs[1:]:
        torch.maximum(result[:run], parts[start : start + run], out=result[:run])
        start += run
    return result


def _added(parts: torch.Tensor, runs: Sequence[int]) -> torch.Tensor:
    """Per sequence the sum over its tiles, first to last: [num_tiles, ...] -> [S, ...]."""
    result = parts[: runs[0]].clone()
    start = runs[0]
    for run in runs[1:]:
        result[:run] += parts[start : start + run]
        start += run
    return result


def _index(values: Sequence[int], device: torch.device) -> torch.Tensor:
    """i64 on the device, without waiting for the copy."""
    return torch.tensor(values, dtype=torch.int64).to(device, non_blocking=True)


def _num_tiles(length: int) -> int:
    return -(-length // TILE)
