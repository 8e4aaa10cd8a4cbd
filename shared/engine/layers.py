"""The arithmetic between attention calls, on packed rows [T, width].

Bits of a row must not depend on what else is in the batch. On a CPU that holds because
- every matrix product has at least MIN_ROWS rows (the model runner pads a step to that): below,
  BLAS takes kernels that add in another order. MKL with AVX-512 did so under 16 rows, and gave
  equal bits from 16 to 700; `row_invariant` asks this machine's BLAS;
- SiLU, the only function whose vector and scalar code round differently, runs row by row, so
  each column always meets the same code;
- everything else is per row or exact in any order.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from shared.checkpoint import Llama3Rope, ModelConfig

MIN_ROWS = 16


@dataclass(frozen=True)
class Linear:
    """y = x W^T (+ b)."""

    weight: torch.Tensor
    """[outputs, inputs]"""
    bias: torch.Tensor | None = None

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        product = F.linear(rows, self.weight)
        return product if self.bias is None else product + self.bias


def rms_norm(rows: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Root mean square norm over the last dimension, in float32 (arXiv 1910.07467)."""
    wide = rows.float()
    scale = torch.rsqrt((wide * wide).mean(-1, keepdim=True) + eps)
    return weight * (wide * scale).to(rows.dtype)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up for rows that hold gate, then up: [T, 2 I] -> [T, I].

    The gate stays a strided view on purpose: torch then loops over it row by row.
    """
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)


class Rope:
    """Rotary position embedding (arXiv 2104.09864), halves rotated as in Hugging Face."""

    def __init__(self, config: ModelConfig, max_positions: int, device: torch.device) -> None:
        frequencies = _inverse_frequencies(config)
        angles = torch.arange(max_positions, dtype=torch.float32)[:, None] * frequencies
        self._cos = angles.cos().to(device)
        self._sin = angles.sin().to(device)

    def at(self, positions: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin for the rows of a step, each [T, 1, head_dim / 2]."""
        cos = self._cos.index_select(0, positions).unsqueeze(1)
        sin = self._sin.index_select(0, positions).unsqueeze(1)
        return cos.to(dtype), sin.to(dtype)


def rotate(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turn each pair (i, i + head_dim / 2) of [T, H, head_dim] by its position's angle."""
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def row_invariant(linear: Linear) -> bool:
    """Whether this machine computes a row of x W^T to the same bits whatever is beside it."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(256, linear.weight.shape[1], generator=generator).to(linear.weight)
    together = linear(rows)
    return all(
        torch.equal(linear(rows[first : first + count]), together[first : first + count])
        for first, count in enumerate((MIN_ROWS, MIN_ROWS + 1, 31, 64, 129))
    )


def _inverse_frequencies(config: ModelConfig) -> torch.Tensor:
    """f32[head_dim / 2], radians per position."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    frequencies = 1.0 / (config.rope_theta**exponents)
    if config.llama3_rope is None:
        return frequencies
    return _llama3_frequencies(frequencies, config.llama3_rope)


def _llama3_frequencies(frequencies: torch.Tensor, rope: Llama3Rope) -> torch.Tensor:
    """Long waves are slowed by `factor`, short ones kept, those between are blended."""
    wavelengths = 2 * math.pi / frequencies
    turns = rope.original_max_position_embeddings / wavelengths
    kept = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    kept = kept.clamp(0.0, 1.0)
    return (1 - kept) * frequencies / rope.factor + kept * frequencies
