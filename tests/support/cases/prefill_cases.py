"""Cases of paged_prefill, interpreted or compiled: odd lengths, borders, windows, many sequences.

Whatever the kernel must not read is poisoned: slots past a sequence's end and blocks no row sees
hold NaN, table entries outside a sequence or left of every row's window name no block.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch

from kernels.attention import reference
from kernels.attention.paged_prefill import paged_prefill
from kernels.attention.prefill_plan import PrefillPlan, PrefillTile

NOWHERE = 2**30
"""a block id outside any pool"""
TOLERANCES = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
"""relative L2 error of any row and head, by type: its rounding of weights and of the result"""


@dataclass(frozen=True)
class PrefillCase:
    """Shapes of one paged_prefill call."""

    query_lens: tuple[int, ...]
    context_lens: tuple[int, ...]
    num_heads: int = 2
    num_kv_heads: int = 1
    head_dim: int = 16
    block_size: int = 16
    window: int = 0
    num_padding: int = 0
    """rows of q past the last sequence's"""


SMALL_CASES = (
    PrefillCase((1,), (1,)),
    PrefillCase((5, 0, 20, 1), (5, 9, 20, 37), num_padding=3),
    PrefillCase((16, 17, 15), (32, 33, 48), num_heads=3, num_kv_heads=3),
    PrefillCase((33,), (50,), num_heads=6, num_kv_heads=2, head_dim=80, block_size=32),
    PrefillCase((17, 33), (50, 33), num_kv_heads=2, head_dim=64, window=9),
    PrefillCase((40,), (100,), block_size=64, window=33),
    PrefillCase((3,), (130,), num_heads=16, head_dim=96, block_size=128, window=100),
    PrefillCase((0, 0), (4, 0), num_padding=2),
)
LARGE_CASES = (
    PrefillCase((1, 5, 0, 200), (1, 37, 9, 200), 2, 1, num_padding=3),
    PrefillCase((128, 300), (128, 700), 8, 2),
    PrefillCase((257, 33), (1000, 33), 6, 3, block_size=64, window=100),
    PrefillCase((400, 1), (900, 1025), 4, 4, block_size=128),
    PrefillCase((400,), (1200,), 16, 1, block_size=32, window=257),
    PrefillCase((129,), (1200,), 4, 1, window=1),
    PrefillCase((300,), (700,), 4, 1, block_size=256),
    PrefillCase((70,), (170,), 4, 1, block_size=48),
)


@dataclass(frozen=True)
class PrefillInputs:
    """Arguments of one call, and what the reference may read."""

    case: PrefillCase
    q: torch.Tensor
    """a slice of a fused projection"""
    kv_pool: torch.Tensor
    block_tables: torch.Tensor
    whole_tables: torch.Tensor
    """without poison"""

    @property
    def layer(self) -> int:
        return 1

    @property
    def scale(self) -> float:
        return 1 / math.sqrt(self.case.head_dim)

    def computed(self, tile: PrefillTile | None = None, **changes: Any) -> torch.Tensor:
        """The kernel's result; `changes` to the case plan something else than was asked."""
        planned = replace(self.case, **changes)
        plan = PrefillPlan.build(
            planned.query_lens,
            planned.context_lens,
            planned.num_heads,
            self.kv_pool,
            planned.window,
            tile,
        )
        tables = self.whole_tables if changes else self.block_tables
        output = torch.full_like(self.q, float("nan"))
        paged_prefill(self.q, self.kv_pool, self.layer, tables, plan, self.scale, output)
        return output

    def expected(self) -> torch.Tensor:
        """The reference's result, in float32 throughout."""
        borders = torch.tensor([0, *self.case.query_lens]).cumsum(0).int()
        return reference.paged_prefill_attention(
            self.q.float(),
            self.kv_pool.float(),
            self.layer,
            self.whole_tables,
            borders.to(self.q.device),
            torch.tensor(self.case.context_lens, dtype=torch.int32, device=self.q.device),
            self.scale,
            self.case.window,
        )


def prefill_inputs(case: PrefillCase, dtype: torch.dtype, device: str) -> PrefillInputs:
    generator = torch.Generator().manual_seed(sum(case.context_lens))
    counts = [-(-length // case.block_size) for length in case.context_lens]
    num_blocks = sum(counts) + 2
    free = torch.randperm(num_blocks, generator=generator).tolist()
    shape = (num_blocks, 2, 2, case.num_kv_heads, case.block_size, case.head_dim)
    pool = torch.full(shape, float("nan"))
    poisoned = torch.full((len(counts), max(counts) + 1), NOWHERE, dtype=torch.int32)
    whole = poisoned.clone()
    for sequence, (num_rows, length) in enumerate(
        zip(case.query_lens, case.context_lens, strict=True)
    ):
        first_seen = max(0, length - num_rows - case.window + 1) if case.window else 0
        for index in range(counts[sequence]):
            block = free.pop()
            used = min(case.block_size, length - index * case.block_size)
            rows = (2, 2, case.num_kv_heads, used, case.head_dim)
            pool[block, :, :, :, :used] = torch.randn(rows, generator=generator)
            whole[sequence, index] = block
            if (index + 1) * case.block_size > first_seen:
                poisoned[sequence, index] = block
    num_tokens = sum(case.query_lens) + case.num_padding
    fused = torch.randn(num_tokens, case.num_heads + 2, case.head_dim, generator=generator)
    return PrefillInputs(
        case=case,
        q=fused.to(dtype=dtype, device=device)[:, 1:-1],
        kv_pool=pool.to(dtype=dtype, device=device),
        block_tables=poisoned.to(device),
        whole_tables=whole.to(device),
    )


def worst_error(output: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest relative L2 error of a row and head; infinite where either is not a number."""
    difference = torch.linalg.vector_norm(output.float() - expected, dim=-1)
    size = torch.linalg.vector_norm(expected, dim=-1)
    errors = torch.where((difference == 0) & (size == 0), 0.0, difference / size)
    return float(errors.nan_to_num(nan=float("inf")).max()) if errors.numel() else 0.0
