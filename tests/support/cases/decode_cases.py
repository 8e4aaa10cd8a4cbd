"""Cases of paged decode attention, interpreted or compiled: odd lengths, poisoned slots."""

from dataclasses import dataclass

import torch

from kernels.attention import reference
from kernels.attention.decode_plan import DecodePlan
from kernels.attention.decode_tiles import DecodeTile
from kernels.attention.paged_decode import paged_decode

NO_BLOCK = 2**30
"""in a block table where a row has no block: reading it leaves the pool by far"""
LAYER = 1
MAX_ERRORS = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1e-2}
"""||output - reference|| / ||reference||, which is in q's dtype but computed in float32"""


@dataclass(frozen=True)
class DecodeCase:
    """Shapes of one call."""

    lengths: tuple[int, ...]
    num_kv_heads: int = 2
    group: int = 4
    """query heads per KV head"""
    head_dim: int = 64
    block_size: int = 16
    window: int = 0
    strided: bool = False
    """q is a slice of a fused projection"""

    @property
    def scale(self) -> float:
        return float(self.head_dim**-0.5)


@dataclass(frozen=True)
class DecodeInputs:
    """Tensors of one call."""

    q: torch.Tensor
    kv_pool: torch.Tensor
    block_tables: torch.Tensor
    context_lens: torch.Tensor


def decode_inputs(case: DecodeCase, dtype: torch.dtype, device: str, seed: int = 0) -> DecodeInputs:
    """Random rows and keys. Slots past a row's end hold NaN, as unwritten memory may, and so do
    all layers but LAYER."""
    generator = torch.Generator().manual_seed(seed)
    num_rows, size = len(case.lengths), case.block_size
    counts = [-(-length // size) for length in case.lengths]
    shape = (sum(counts) + 1, 3, 2, case.num_kv_heads, size, case.head_dim)
    kv_pool = torch.full(shape, float("nan"))
    kv_pool[:, LAYER] = torch.randn(kv_pool[:, LAYER].shape, generator=generator)
    shuffled = torch.randperm(shape[0], generator=generator, dtype=torch.int64).int()
    block_tables = torch.full((num_rows, max(1, *counts) + 1), NO_BLOCK, dtype=torch.int32)
    first = 0
    for row, (length, count) in enumerate(zip(case.lengths, counts, strict=True)):
        block_tables[row, :count] = shuffled[first : first + count]
        if length % size:
            kv_pool[int(block_tables[row, count - 1]), :, :, :, length % size :] = float("nan")
        first += count
    num_heads = case.num_kv_heads * case.group
    fused = torch.randn(num_rows, num_heads + 3, case.head_dim, generator=generator)
    fused = fused.to(dtype=dtype, device=device)
    return DecodeInputs(
        q=fused[:, 2:-1] if case.strided else fused[:, 2:-1].contiguous(),
        kv_pool=kv_pool.to(dtype=dtype, device=device),
        block_tables=block_tables.to(device),
        context_lens=torch.tensor(case.lengths, dtype=torch.int32, device=device),
    )


def attend(case: DecodeCase, inputs: DecodeInputs, tile: DecodeTile) -> torch.Tensor:
    """The kernel's answer in a poisoned output; its parts are poisoned too."""
    plan = DecodePlan.allocate(
        inputs.context_lens, inputs.q.shape[1], inputs.kv_pool, tile, case.window
    )
    plan.parts.fill_(float("nan"))
    plan.stats.fill_(float("nan"))
    output = torch.full_like(inputs.q, float("nan"))
    plan.fill()
    paged_decode(inputs.q, inputs.kv_pool, LAYER, inputs.block_tables, plan, case.scale, output)
    assert not plan.arrivals.any(), "the next call would not find its arrivals at zero"
    return output


def expected(case: DecodeCase, inputs: DecodeInputs) -> torch.Tensor:
    return reference.paged_decode_attention(
        inputs.q,
        inputs.kv_pool,
        LAYER,
        inputs.block_tables,
        inputs.context_lens,
        case.scale,
        case.window,
    )


def relative_error(output: torch.Tensor, wanted: torch.Tensor) -> float:
    """Infinite for an output with a NaN, which no bound must pass."""
    error = (output.double() - wanted.double()).norm() / wanted.double().norm().clamp(min=1e-30)
    return float(error.nan_to_num(nan=float("inf")))
