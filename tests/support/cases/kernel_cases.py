"""Cases every kernel test uses, interpreted or compiled: small and odd on purpose."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class StoreCase:
    """Shapes of one store_kv call."""

    num_tokens: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    num_blocks: int = 7
    num_layers: int = 3
    layer: int = 1
    num_skipped: int = 0
    """rows whose slot is -1"""
    strided: bool = False
    """k and v are slices of a fused projection"""


@dataclass(frozen=True)
class StoreInputs:
    """Arguments of one store_kv call."""

    k: torch.Tensor
    v: torch.Tensor
    kv_pool: torch.Tensor
    layer: int
    slot_mapping: torch.Tensor


STORE_CASES = (
    StoreCase(num_tokens=1, num_kv_heads=1, head_dim=16, block_size=16),
    StoreCase(num_tokens=15, num_kv_heads=2, head_dim=64, block_size=16, num_skipped=4),
    StoreCase(num_tokens=17, num_kv_heads=3, head_dim=80, block_size=16, layer=2),
    StoreCase(num_tokens=5, num_kv_heads=8, head_dim=128, block_size=1, strided=True),
    StoreCase(num_tokens=33, num_kv_heads=5, head_dim=96, block_size=7, layer=0, strided=True),
    StoreCase(num_tokens=3, num_kv_heads=40, head_dim=48, block_size=64, num_skipped=3),
)


def store_inputs(case: StoreCase, dtype: torch.dtype, device: str) -> StoreInputs:
    """Random rows for random distinct slots of a random pool."""
    generator = torch.Generator().manual_seed(case.num_tokens)
    shape = (
        case.num_blocks,
        case.num_layers,
        2,
        case.num_kv_heads,
        case.block_size,
        case.head_dim,
    )
    fused = torch.randn(case.num_tokens, 4 * case.num_kv_heads, case.head_dim, generator=generator)
    fused = fused.to(dtype=dtype, device=device)
    _, k, v, _ = torch.chunk(fused, 4, dim=1)
    slots = torch.randperm(case.num_blocks * case.block_size, generator=generator)
    slots = slots[: case.num_tokens]
    assert slots.shape[0] == case.num_tokens, "the pool is too small for the case"
    slots[: case.num_skipped] = -1
    return StoreInputs(
        k=k if case.strided else k.contiguous(),
        v=v if case.strided else v.contiguous(),
        kv_pool=torch.randn(shape, generator=generator).to(dtype=dtype, device=device),
        layer=case.layer,
        slot_mapping=slots.to(device),
    )
