"""Runs the model over one batch: K and V into the pool, logits of the wanted rows out.

Nothing is read back from the device, and no tensor of a batch is looked at on the host.
"""

from dataclasses import replace

import torch
import torch.nn.functional as F

from shared.engine import layers
from shared.engine.attention import Attention
from shared.engine.batch import BatchTensors
from shared.engine.kv_cache import copy_blocks
from shared.engine.model import Model

SKIP_SLOT = -1


class ModelRunner:
    """One model and its KV pool on one device."""

    def __init__(self, model: Model, kv_pool: torch.Tensor, attention: Attention) -> None:
        self._model = model
        self._kv_pool = kv_pool
        self._attention = attention

    @property
    def device(self) -> torch.device:
        return self._kv_pool.device

    @torch.inference_mode()
    def run(self, batch: BatchTensors) -> torch.Tensor:
        """Do the batch's block copies, write K and V of its T tokens, and return the logits of
        its logits_rows, f32[R, vocab_size]."""
        copy_blocks(self._kv_pool, batch.copies)
        num_rows = batch.logits_rows.shape[0]
        if self.device.type == "cpu":
            batch = padded(batch, layers.MIN_ROWS)
        hidden = self._model.forward(batch, self._kv_pool, self._attention)
        return self._model.logits(hidden.index_select(0, batch.logits_rows))[:num_rows]


def padded(batch: BatchTensors, min_rows: int) -> BatchTensors:
    """At least `min_rows` rows and logits rows; the added ones belong to no sequence, are stored
    nowhere and repeat token 0 (see shared.engine.layers for why they exist)."""
    missing = max(0, min_rows - batch.input_ids.shape[0])
    missing_logits = max(0, min_rows - batch.logits_rows.shape[0])
    if batch.logits_rows.shape[0] == 0:
        missing_logits = 0
    return replace(
        batch,
        input_ids=F.pad(batch.input_ids, (0, missing)),
        positions=F.pad(batch.positions, (0, missing)),
        slot_mapping=F.pad(batch.slot_mapping, (0, missing), value=SKIP_SLOT),
        logits_rows=F.pad(batch.logits_rows, (0, missing_logits)),
    )
