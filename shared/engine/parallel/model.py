"""One rank's part of a model, which looks whole to its runner."""

import torch

from shared.engine.layers.attention import Attention
from shared.engine.layers.batch_tensors import BatchTensors
from shared.engine.layers.matrices import Linear
from shared.engine.layers.model import Model
from shared.engine.parallel.ranks import Ranks


class ParallelModel:
    """See shared.engine.layers.model.Model; logits are right on rank 0 only."""

    def __init__(self, model: Model, ranks: Ranks) -> None:
        self._model = model
        self._ranks = ranks

    def forward(
        self, batch: BatchTensors, kv_pool: torch.Tensor, attention: Attention
    ) -> torch.Tensor:
        return self._model.forward(batch, kv_pool, attention)

    def logits(self, hidden: torch.Tensor, output: torch.Tensor | None = None) -> torch.Tensor:
        own = self._model.logits(hidden)
        if output is None:
            output = own.new_empty(own.shape[0], self.vocab_size)
        return self._ranks.gather(own, output)

    @property
    def vocab_size(self) -> int:
        return self._model.vocab_size

    @property
    def linears(self) -> list[Linear]:
        return self._model.linears
