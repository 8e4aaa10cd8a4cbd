"""Torch reference of skinny_linear, with its arguments: written to be read, not to be fast."""

import torch
import torch.nn.functional as F


def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    norm: tuple[torch.Tensor, float] | None = None,
    residual: torch.Tensor | None = None,
    gated: bool = False,
) -> torch.Tensor:
    """x W^T (+ bias) of x [M, inputs], in float32, rounded once to x's dtype.

    `norm` is (weight [inputs], eps) of a root mean square norm of x's rows. With `gated` W holds
    gate rows and then up rows, and the result is silu(gate) * up. `residual` is added last.
    """
    rows = x.float()
    if norm is not None:
        norm_weight, eps = norm
        rows = rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + eps)
        rows = rows * norm_weight.float()
    product = rows @ weight.float().T
    if bias is not None:
        product = product + bias.float()
    if gated:
        gate, up = product.chunk(2, dim=-1)
        product = F.silu(gate) * up
    if residual is not None:
        product = product + residual.float()
    return product.to(x.dtype)
