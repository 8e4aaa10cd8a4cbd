"""What a decoder layer is made of, in as large parts as a device can compute at once.

A model is written in these. In plain torch a part is the obvious composition; on a GPU it is one
kernel, or two (shared/engine/layers/kernel_operations.py).
"""

from typing import NamedTuple, Protocol

import torch

from shared.engine.layers.batch_tensors import BatchTensors
from shared.engine.layers.kv_cache import store_kv
from shared.engine.layers.matrices import LayerNorm, Linear, RmsNorm, silu_mul
from shared.engine.layers.rope import Rope, rotate


class Angles(NamedTuple):
    """Cosines and sines that `turn_and_store` reads, in the form its implementation wants."""

    cos: torch.Tensor
    sin: torch.Tensor


class Operations(Protocol):
    """Rows are [T, width] in the model's type."""

    def project(
        self,
        rows: torch.Tensor,
        norm: RmsNorm | LayerNorm,
        linear: Linear,
        output: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """linear(norm(rows)), written to `output` if there is one."""

    def gate(self, rows: torch.Tensor, norm: RmsNorm, gate_up: Linear) -> torch.Tensor:
        """silu(gate) * up of gate_up(norm(rows))."""

    def add(
        self, residual: torch.Tensor | None, linear: Linear, rows: torch.Tensor
    ) -> torch.Tensor:
        """residual, if there is one, + linear(rows), the linear's inputs being split over all
        ranks, if there are several. The residual's memory may become the result's."""

    def angles(self, rope: Rope, positions: torch.Tensor, dtype: torch.dtype) -> Angles:
        """For i64[T] positions; once per step, for all layers."""

    def turn_and_store(
        self,
        qkv: torch.Tensor,
        angles: Angles,
        qk_norm: RmsNorm | None,
        batch: BatchTensors,
        kv_pool: torch.Tensor,
        layer: int,
    ) -> torch.Tensor:
        """Split rows of query, key and value heads; norm each query and key head, if there is a
        norm for them, and turn it by its position; write keys and values to the batch's slots.
        Returns the queries, [T, num_heads, head_dim]."""


class TorchOperations:
    """For any device; on a CPU a row's bits depend on that row alone."""

    def project(
        self,
        rows: torch.Tensor,
        norm: RmsNorm | LayerNorm,
        linear: Linear,
        output: torch.Tensor | None = None,
    ) -> torch.Tensor:
        product = linear(norm(rows))
        return product if output is None else output.copy_(product)

    def gate(self, rows: torch.Tensor, norm: RmsNorm, gate_up: Linear) -> torch.Tensor:
        return silu_mul(gate_up(norm(rows)))

    def add(
        self, residual: torch.Tensor | None, linear: Linear, rows: torch.Tensor
    ) -> torch.Tensor:
        product = linear(rows)
        return product if residual is None else residual + product

    def angles(self, rope: Rope, positions: torch.Tensor, dtype: torch.dtype) -> Angles:
        return Angles(*rope.at(positions, dtype))

    def turn_and_store(
        self,
        qkv: torch.Tensor,
        angles: Angles,
        qk_norm: RmsNorm | None,
        batch: BatchTensors,
        kv_pool: torch.Tensor,
        layer: int,
    ) -> torch.Tensor:
        num_kv_heads, head_dim = kv_pool.shape[3], kv_pool.shape[5]
        heads = qkv.view(qkv.shape[0], -1, head_dim)
        num_turned = heads.shape[1] - num_kv_heads
        turned, values = torch.split(heads, [num_turned, num_kv_heads], dim=1)
        if qk_norm is not None:
            turned = qk_norm(turned)
        turned = rotate(turned, angles.cos, angles.sin)
        queries, keys = torch.split(turned, [num_turned - num_kv_heads, num_kv_heads], dim=1)
        store_kv(keys, values, kv_pool, layer, batch.slot_mapping)
        return queries
