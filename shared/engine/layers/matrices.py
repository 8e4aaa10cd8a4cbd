"""The matrices and norms of a model, and their arithmetic in plain torch on packed rows [T, width].

Bits of a row must not depend on what else is in the batch. On a CPU that holds because
- every matrix product has at least MIN_ROWS rows (the model runner pads a step to that): below,
  BLAS takes kernels that add in another order. MKL with AVX-512 did so under 16 rows, and gave
  equal bits from 16 to 700; `row_invariant` asks this machine's BLAS;
- SiLU and GELU, the only functions whose vector and scalar code round differently, run row by
  row, so each column always meets the same code;
- everything else is per row or exact in any order.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

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


@dataclass(frozen=True)
class RmsNorm:
    """Root mean square norm over the last dimension (arXiv 1910.07467), in float32."""

    weight: torch.Tensor
    """of the last dimension, or of [heads, head_dim] for a norm of each head"""
    eps: float

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        wide = rows.float()
        scale = torch.rsqrt((wide * wide).mean(-1, keepdim=True) + self.eps)
        return self.weight * (wide * scale).to(rows.dtype)


@dataclass(frozen=True)
class LayerNorm:
    """Norm over the last dimension with its mean taken off (arXiv 1607.06450), row by row."""

    weight: torch.Tensor
    bias: torch.Tensor
    eps: float

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(rows, self.weight.shape, self.weight, self.bias, self.eps)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up for rows that hold gate, then up: [T, 2 I] -> [T, I].

    The gate stays a strided view on purpose: torch then loops over it row by row.
    """
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)


def gelu_tanh(rows: torch.Tensor) -> torch.Tensor:
    """GELU in its tanh form (arXiv 1606.08415), which Hugging Face calls gelu_new: [T, I].

    The copy with a column more makes the rows strided, for the reason above.
    """
    strided = F.pad(rows, (0, 1))[:, :-1]
    return F.gelu(strided, approximate="tanh")


def row_invariant(linear: Linear) -> bool:
    """Whether this machine computes a row of x W^T to the same bits whatever the other rows are."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(256, linear.weight.shape[1], generator=generator).to(linear.weight)
    together = linear(rows)
    return all(
        torch.equal(linear(rows[first : first + count]), together[first : first + count])
        for first, count in enumerate((MIN_ROWS, MIN_ROWS + 1, 31, 64, 129))
    )
