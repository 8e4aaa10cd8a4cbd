"""Spread one step's packed input over the tensors a model reads.

A step reaches the device as one copy of i32: token ids, positions and slots of T tokens, then
context and query lengths of S sequences, other parts, and last the block tables, S rows of W (see
HostBatch in shared/engine/scheduling/batch.py). Here they become tensors at fixed addresses, which
a captured graph reads. An id -1 - r is the token that row r of the step before sampled, so that a
step can follow another without a word from the host.
"""

import torch
import triton
import triton.language as tl

from kernels.launching.launch import ceil_div, check_same_device

TILE = 1024
"""numbers one program copies"""


COUNTS = (
    "num_tokens",
    "num_sequences",
    "num_rows",
    "tables_at",
    "table_width",
    "table_stride",
    "token_programs",
)
"""differ from step to step: a variant for each multiple of 16 would be compiled while serving"""


@triton.jit(do_not_specialize=COUNTS)
def prepare_step_kernel(
    packed_ptr,
    previous_ptr,
    id_ptr,
    position_ptr,
    slot_ptr,
    length_ptr,
    table_ptr,
    num_tokens,
    num_sequences,
    num_rows,
    tables_at,
    table_width,
    table_stride,
    token_programs,
    TILE: tl.constexpr,
):
    """Grid (token_programs + num_sequences * tiles of a table's row,)."""
    program = tl.program_id(0)
    columns = tl.arange(0, TILE)
    if program < token_programs:
        tokens = program * TILE + columns
        real = tokens < num_tokens
        inside = tokens < num_rows
        ids = tl.load(packed_ptr + tokens, real, other=0)
        ahead = tl.load(previous_ptr + (-1 - ids), real & (ids < 0), other=0)
        tl.store(id_ptr + tokens, tl.where(ids < 0, ahead, ids.to(tl.int64)), inside)
        positions = tl.load(packed_ptr + num_tokens + tokens, real, other=0)
        tl.store(position_ptr + tokens, positions.to(tl.int64), inside)
        slots = tl.load(packed_ptr + 2 * num_tokens + tokens, real, other=-1)
        tl.store(slot_ptr + tokens, slots.to(tl.int64), inside)
        lengths = tl.load(packed_ptr + 3 * num_tokens + tokens, tokens < num_sequences, other=0)
        tl.store(length_ptr + tokens, lengths, inside)
    else:
        index = program - token_programs
        tiles = (table_width + TILE - 1) // TILE
        row = (index // tiles).to(tl.int64)
        at = index % tiles * TILE + columns
        blocks = tl.load(packed_ptr + tables_at + row * table_width + at, at < table_width, other=0)
        tl.store(table_ptr + row * table_stride + at, blocks, at < table_width)


def prepare_step(
    packed: torch.Tensor,
    previous: torch.Tensor | None,
    num_tokens: int,
    tables_at: int,
    outputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor],
) -> None:
    """Unpack i32 `packed` into outputs: ids, positions and slots i64[N], context lengths i32[N]
    and block tables i32[S, at least W], W being the shorter of the two widths.

    N >= num_tokens: rows past the last token belong to no sequence. They get token 0 at position 0,
    slot -1 and length 0. `previous` i64[R] are the tokens that the step before sampled. Block
    tables begin at packed[tables_at] and end with it. ValueError or TypeError for what does not
    fit.
    """
    input_ids, positions, slots, context_lens, tables = outputs
    num_rows, num_sequences = input_ids.shape[0], tables.shape[0]
    width = (packed.shape[0] - tables_at) // max(1, num_sequences)
    _check(packed, previous, num_tokens, width, outputs)
    token_programs = ceil_div(num_rows, TILE)
    grid = token_programs + num_sequences * ceil_div(width, TILE)
    prepare_step_kernel[(grid,)](
        packed,
        input_ids if previous is None else previous,
        input_ids,
        positions,
        slots,
        context_lens,
        tables,
        num_tokens,
        num_sequences,
        num_rows,
        tables_at,
        width,
        tables.stride(0),
        token_programs,
        TILE=TILE,
    )


def _check(
    packed: torch.Tensor,
    previous: torch.Tensor | None,
    num_tokens: int,
    width: int,
    outputs: tuple[torch.Tensor, ...],
) -> None:
    input_ids, positions, slots, context_lens, tables = outputs
    rows = input_ids.shape
    if any(item.shape != rows for item in (positions, slots, context_lens)):
        raise ValueError("ids, positions, slots and lengths must have one shape")
    if rows[0] < num_tokens or tables.dim() != 2 or rows[0] < tables.shape[0]:
        raise ValueError(f"{num_tokens} tokens, tables {tuple(tables.shape)}, {rows[0]} rows")
    if width > tables.shape[1] or tables.stride(1) != 1:
        raise ValueError(f"tables {tuple(tables.shape)}, need rows of {width}")
    if packed.dtype is not torch.int32 or context_lens.dtype is not torch.int32:
        raise TypeError("packed numbers and lengths must be int32")
    if tables.dtype is not torch.int32:
        raise TypeError(f"tables are {tables.dtype}, need int32")
    longs = [input_ids, positions, slots, *([] if previous is None else [previous])]
    if any(item.dtype is not torch.int64 or not item.is_contiguous() for item in longs):
        raise TypeError("ids, positions and slots must be contiguous int64")
    check_same_device(packed, *outputs, *([] if previous is None else [previous]))
