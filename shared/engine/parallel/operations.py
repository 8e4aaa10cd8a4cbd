"""A decoder layer's parts on one of several ranks."""

import torch

from shared.engine.layers.batch_tensors import BatchTensors
from shared.engine.layers.matrices import LayerNorm, Linear, RmsNorm
from shared.engine.layers.operations import Angles, Operations
from shared.engine.layers.rope import Rope
from shared.engine.parallel.ranks import Ranks


class ParallelOperations:
    """What a rank computes for itself is another implementation's; where a product's inputs are
    split over the ranks, the ranks' products are added up."""

    def __init__(self, operations: Operations, ranks: Ranks) -> None:
        self._own = operations
        self._ranks = ranks

    def project(
        self,
        rows: torch.Tensor,
        norm: RmsNorm | LayerNorm,
        linear: Linear,
        output: torch.Tensor | None = None,
    ) -> torch.Tensor:
        return self._own.project(rows, norm, linear, output)

    def gate(self, rows: torch.Tensor, norm: RmsNorm, gate_up: Linear) -> torch.Tensor:
        return self._own.gate(rows, norm, gate_up)

    def add(
        self, residual: torch.Tensor | None, linear: Linear, rows: torch.Tensor
    ) -> torch.Tensor:
        assert residual is not None
        return self._ranks.reduce(self._own.add(None, linear, rows), residual)

    def angles(self, rope: Rope, positions: torch.Tensor, dtype: torch.dtype) -> Angles:
        return self._own.angles(rope, positions, dtype)

    def turn_and_store(
        self,
        qkv: torch.Tensor,
        angles: Angles,
        qk_norm: RmsNorm | None,
        batch: BatchTensors,
        kv_pool: torch.Tensor,
        layer: int,
    ) -> torch.Tensor:
        return self._own.turn_and_store(qkv, angles, qk_norm, batch, kv_pool, layer)
