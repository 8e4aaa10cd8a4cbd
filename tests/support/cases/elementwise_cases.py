"""Cases of the elementwise kernels, interpreted or compiled: widths and heads of any number."""

from dataclasses import dataclass

import torch

from kernels.elementwise import reference

EPS = 1e-5
NUM_POSITIONS = 40


def all_close(actual: torch.Tensor, expected: torch.Tensor) -> bool:
    """Equal but for two roundings to the dtype and the order of additions in float32; values are
    of the order of one."""
    exact = torch.finfo(torch.float32).eps
    relative = max(2 * torch.finfo(expected.dtype).eps, 16 * exact)
    return torch.allclose(actual.float(), expected.float(), rtol=relative, atol=32 * exact)


def make_rows(
    num_rows: int, width: int, dtype: torch.dtype, device: str, *, strided: bool = False
) -> torch.Tensor:
    """Random [num_rows, width]; strided: a slice of longer rows."""
    generator = torch.Generator().manual_seed(num_rows * 1000 + width)
    rows = torch.randn(num_rows, width + 24 * strided, generator=generator)
    return rows.to(device=device, dtype=dtype)[:, 8 * strided :][:, :width]


@dataclass(frozen=True)
class RopeCase:
    """Shapes of one rope_store call."""

    num_tokens: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int = 16
    num_skipped: int = 0
    """tokens whose slot is -1"""
    norm: bool = False
    in_place: bool = False
    """the rotated queries replace those in qkv"""


@dataclass(frozen=True)
class RopeInputs:
    """Arguments of one rope_store call."""

    qkv: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor
    positions: torch.Tensor
    slot_mapping: torch.Tensor
    kv_pool: torch.Tensor
    layer: int
    queries: torch.Tensor
    qk_norm: torch.Tensor | None


def rope_inputs(case: RopeCase, dtype: torch.dtype, device: str) -> RopeInputs:
    """Random rows for random distinct slots of a random pool of three layers."""
    generator = torch.Generator().manual_seed(case.num_tokens)
    heads, head_dim = case.num_heads, case.head_dim
    num_blocks = -(-case.num_tokens // case.block_size) + 2
    shape = (num_blocks, 3, 2, case.num_kv_heads, case.block_size, head_dim)
    width = (heads + 2 * case.num_kv_heads) * head_dim
    qkv = torch.randn(case.num_tokens, width, generator=generator).to(device, dtype)
    queries = torch.zeros(case.num_tokens, heads, head_dim, dtype=dtype, device=device)
    angles = torch.rand(NUM_POSITIONS, head_dim // 2, generator=generator) * 7
    slots = torch.randperm(num_blocks * case.block_size, generator=generator)[: case.num_tokens]
    slots[: case.num_skipped] = -1
    norm = torch.randn(heads + case.num_kv_heads, head_dim, generator=generator)
    return RopeInputs(
        qkv=qkv,
        cos=angles.cos().to(device),
        sin=angles.sin().to(device),
        positions=torch.randint(NUM_POSITIONS, (case.num_tokens,), generator=generator).to(device),
        slot_mapping=slots.to(device),
        kv_pool=torch.randn(shape, generator=generator).to(device, dtype),
        layer=1,
        queries=qkv[:, : heads * head_dim].unflatten(1, (heads, -1)) if case.in_place else queries,
        qk_norm=norm.to(device, dtype) if case.norm else None,
    )


def rope_expected(inputs: RopeInputs) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries and pool as the reference leaves them; the inputs stay as they are."""
    queries = torch.empty_like(inputs.queries, memory_format=torch.contiguous_format)
    kv_pool = inputs.kv_pool.clone()
    reference.rope_store(
        inputs.qkv,
        inputs.cos,
        inputs.sin,
        inputs.positions,
        inputs.slot_mapping,
        kv_pool,
        inputs.layer,
        queries,
        qk_norm=inputs.qk_norm,
        eps=EPS,
    )
    return queries, kv_pool
