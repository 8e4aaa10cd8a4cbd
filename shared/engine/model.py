"""What a model family offers the engine: the class `Model` of each file in shared/engine/models."""

from typing import Protocol

import torch

from shared.engine.attention import Attention
from shared.engine.batch import BatchTensors
from shared.engine.layers import Linear


class Model(Protocol):
    """The weights and the forward pass of one checkpoint."""

    def forward(
        self, batch: BatchTensors, kv_pool: torch.Tensor, attention: Attention
    ) -> torch.Tensor:
        """Hidden states [T, hidden_size] of all rows, normalised; writes their K and V."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """f32[R, vocab_size] of these rows only."""

    @property
    def linears(self) -> list[Linear]:
        """Every matrix the model multiplies with, for checks of the machine's arithmetic."""
