"""What a model family offers the engine: the class `Model` of each file in shared/engine/models."""

from typing import Protocol

import torch

from shared.engine.layers.attention import Attention
from shared.engine.layers.batch_tensors import BatchTensors
from shared.engine.layers.matrices import Linear


class Model(Protocol):
    """The weights and the forward pass of one checkpoint."""

    def forward(
        self, batch: BatchTensors, kv_pool: torch.Tensor, attention: Attention
    ) -> torch.Tensor:
        """Hidden states [T, hidden_size] of all rows; writes their K and V."""

    def logits(self, hidden: torch.Tensor, output: torch.Tensor | None = None) -> torch.Tensor:
        """[R, vocab_size] of these rows only, in the model's type; in `output` if given."""

    @property
    def vocab_size(self) -> int:
        """Columns of the logits."""

    @property
    def linears(self) -> list[Linear]:
        """Every matrix the model multiplies with, for checks of the machine's arithmetic."""
