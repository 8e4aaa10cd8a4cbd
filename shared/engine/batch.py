"""The tensors of one step: all scheduled tokens packed in one row, never padded.

Sequence s owns rows cu_seqlens_q[s] to cu_seqlens_q[s + 1]. Its K and V lie in the blocks of
block_tables[s]; the new tokens' go to slot_mapping (slot = block_id * block_size + offset)
before attention reads them.
"""

from collections.abc import Sequence as Run
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from shared.engine.sequence import Sequence


class ScheduledSequence(NamedTuple):
    """Tokens [start, start + num_tokens) of one sequence, computed in this step."""

    sequence: Sequence
    start: int
    num_tokens: int
    samples: bool
    """its last token's logits are wanted: nothing known comes after it"""
    prefill: bool
    """prompt work, as opposed to feeding back a sampled token"""


class BlockCopy(NamedTuple):
    """Copy-on-write: block `src` is copied to `dst` before anything of the step is written."""

    src: int
    dst: int


@dataclass(frozen=True)
class BatchTensors:
    """One step's input to the model runner. T tokens, S sequences, R rows to sample, C copies."""

    input_ids: torch.Tensor
    """i64[T]"""
    positions: torch.Tensor
    """i64[T], index of each token in its sequence"""
    slot_mapping: torch.Tensor
    """i64[T]"""
    cu_seqlens_q: torch.Tensor
    """i32[S + 1]"""
    context_lens: torch.Tensor
    """i32[S], KV length after this step"""
    block_tables: torch.Tensor
    """i32[S, widest table]; unused entries are 0 and must not be read"""
    logits_rows: torch.Tensor
    """i64[R], rows of T whose logits are wanted"""
    copies: torch.Tensor
    """i64[C, 2] of (src, dst) block ids: pool[dst] = pool[src] first of all; C is mostly 0"""
    query_lens: tuple[int, ...]
    """S ints on the host: tokens of each sequence in this step"""
    context_lens_host: tuple[int, ...]
    """context_lens on the host"""


def build_batch(
    scheduled: Run[ScheduledSequence],
    copies: Run[BlockCopy],
    block_size: int,
    device: torch.device,
) -> BatchTensors:
    """Pack the scheduled tokens. One small transfer per tensor, nothing read back."""
    input_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    cu_seqlens = [0]
    context_lens: list[int] = []
    logits_rows: list[int] = []
    for sequence, start, num_tokens, samples, _ in scheduled:
        end = start + num_tokens
        input_ids += sequence.token_ids[start:end]
        positions += range(start, end)
        slots += slot_range(sequence.block_table, start, end, block_size)
        cu_seqlens.append(cu_seqlens[-1] + num_tokens)
        context_lens.append(end)
        if samples:
            logits_rows.append(cu_seqlens[-1] - 1)
    return BatchTensors(
        input_ids=torch.tensor(input_ids, dtype=torch.int64, device=device),
        positions=torch.tensor(positions, dtype=torch.int64, device=device),
        slot_mapping=torch.tensor(slots, dtype=torch.int64, device=device),
        cu_seqlens_q=torch.tensor(cu_seqlens, dtype=torch.int32, device=device),
        context_lens=torch.tensor(context_lens, dtype=torch.int32, device=device),
        block_tables=_block_tables(scheduled, context_lens, block_size).to(device),
        logits_rows=torch.tensor(logits_rows, dtype=torch.int64, device=device),
        copies=torch.tensor(copies, dtype=torch.int64, device=device).view(-1, 2),
        query_lens=tuple(item.num_tokens for item in scheduled),
        context_lens_host=tuple(context_lens),
    )


def slot_range(block_table: Run[int], start: int, end: int, block_size: int) -> list[int]:
    """Slots of positions [start, end) of a sequence with this block table."""
    slots: list[int] = []
    while start < end:
        block, offset = divmod(start, block_size)
        stop = min(end, start - offset + block_size)
        first = block_table[block] * block_size + offset
        slots += range(first, first + stop - start)
        start = stop
    return slots


def _block_tables(
    scheduled: Run[ScheduledSequence], context_lens: Run[int], block_size: int
) -> torch.Tensor:
    """i32[S, W]: of each table only the blocks that hold positions of this step's context."""
    widths = [-(-length // block_size) for length in context_lens]
    tables = np.zeros((len(widths), max(widths, default=0)), dtype=np.int32)
    for row, (item, width) in enumerate(zip(scheduled, widths, strict=True)):
        tables[row, :width] = np.frombuffer(item.sequence.block_table, dtype=np.int32)[:width]
    return torch.from_numpy(tables)
