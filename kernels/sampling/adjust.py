"""Logits as a row wants them before the choice: bias, penalties, masked endings, a grammar.

In the order and with the single roundings of shared/engine/sampling/penalties.py and
token_masks.py. Rows that want nothing are not copied at all.
"""

import torch
import triton
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction

from kernels.launching.launch import ceil_div, check_interpretable, check_same_device
from kernels.sampling import rows
from kernels.sampling.weights import ADJUSTED, COUNTS, FIELDS, float_field

BIAS = tl.constexpr(rows.BIAS)
REPETITION = tl.constexpr(rows.REPETITION)
FREQUENCY = tl.constexpr(rows.FREQUENCY)
PRESENCE = tl.constexpr(rows.PRESENCE)
ENDINGS = tl.constexpr(rows.ENDINGS)
NUM_ENDINGS = tl.constexpr(rows.NUM_ENDINGS)
ALLOWED = tl.constexpr(rows.ALLOWED)

ADJUST_WARPS = 4
TILE = 1024
"""tokens of one program"""


@triton.jit
def adjust_kernel(
    logits_ptr,
    row_ptr,
    bias_ptr,
    count_ptr,
    adjusted_ptr,
    vocab_size,
    row_stride,
    TILE: tl.constexpr,
):
    """Grid (rows, tiles of tokens). A count is 0 for a token the sequence does not have, else 1
    more than its output has. To be compiled without contraction of a * b + c."""
    row = tl.program_id(0).to(tl.int64)
    entry = row_ptr + row * FIELDS
    adjusted = tl.load(entry + ADJUSTED)
    if adjusted < 0:
        return
    at = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = at < vocab_size
    logits = tl.load(logits_ptr + row * row_stride + at, inside, other=0.0).to(tl.float32)
    bias = tl.load(entry + BIAS)
    if bias >= 0:
        logits += tl.load(bias_ptr + bias * vocab_size + at, inside, other=0.0)
    counts = tl.load(entry + COUNTS)
    if counts >= 0:
        cells = tl.load(count_ptr + counts * vocab_size + at, inside, other=0)
        repetition = float_field(entry + REPETITION)
        repeated = tl.where(logits > 0, tl.div_rn(logits, repetition), logits * repetition)
        number = tl.maximum(cells - 1, 0).to(tl.float32)
        repeated = repeated - float_field(entry + FREQUENCY) * number
        presence = tl.where(cells > 1, float_field(entry + PRESENCE), 0.0)
        logits = tl.where(cells > 0, repeated - presence, logits)
    allowed = tl.load(entry + ALLOWED)
    if allowed > 0:
        words = row_ptr.to(tl.pointer_type(tl.int32)) + allowed
        bits = tl.load(words + at // 32, inside, other=0) >> (at % 32)
        logits = tl.where((bits & 1) != 0, logits, float("-inf"))
    first = row_ptr + tl.load(entry + ENDINGS)
    for index in range(tl.load(entry + NUM_ENDINGS).to(tl.int32)):
        logits = tl.where(at == tl.load(first + index), float("-inf"), logits)
    tl.store(adjusted_ptr + adjusted * vocab_size + at, logits, inside)


def adjust_logits(
    logits: torch.Tensor,
    rows: torch.Tensor,
    adjusted: torch.Tensor,
    bias: torch.Tensor | None = None,
    counts: torch.Tensor | None = None,
) -> None:
    """Fill the rows of `adjusted` f32[A, V] that rows of logits [R, V] name in their table
    (sampling_rows.py; grammar bitmasks have a word for every 32 tokens of V). `bias` f32[B, V] and
    `counts` i32[C, V] where one of them names such a row. ValueError or TypeError for what does
    not fit."""
    _check(logits, rows)
    check_tables(logits, adjusted, bias, counts)
    num_rows, vocab_size = logits.shape
    adjust_kernel[(num_rows, ceil_div(vocab_size, TILE))](
        logits,
        rows,
        adjusted if bias is None else bias,
        rows.view(torch.int32) if counts is None else counts,
        adjusted,
        vocab_size,
        logits.stride(0),
        TILE=TILE,
        num_warps=ADJUST_WARPS,
        enable_fp_fusion=False,
    )


def check_tables(
    logits: torch.Tensor,
    adjusted: torch.Tensor | None,
    bias: torch.Tensor | None = None,
    counts: torch.Tensor | None = None,
) -> None:
    """ValueError or TypeError for a table that does not fit logits [R, V]."""
    tables = ((adjusted, torch.float32), (bias, torch.float32), (counts, torch.int32))
    for table, dtype in tables:
        if table is None:
            continue
        if table.dtype is not dtype:
            raise TypeError(f"a table is {table.dtype}, need {dtype}")
        if table.shape[1:] != logits.shape[1:] or not table.is_contiguous():
            raise ValueError(f"a table is {tuple(table.shape)} for logits {tuple(logits.shape)}")
        check_same_device(logits, table)


def _check(logits: torch.Tensor, rows: torch.Tensor) -> None:
    if logits.dim() != 2 or logits.stride(1) != 1:
        raise ValueError(f"logits {tuple(logits.shape)}, {logits.stride()}")
    if rows.dtype is not torch.int64 or rows.numel() < logits.shape[0] * FIELDS.value:
        raise TypeError(f"rows are {rows.dtype}{tuple(rows.shape)} for {logits.shape[0]}")
    check_same_device(logits, rows)
    if isinstance(adjust_kernel, InterpretedFunction):
        check_interpretable(logits)
