"""Runs the model over one batch: K and V into the pool, logits of the wanted rows out.

Nothing is read back from the device, and no tensor of a batch is looked at on the host.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import torch
import torch.nn.functional as F

from shared.engine.layers import matrices as layers
from shared.engine.layers.attention import Attention
from shared.engine.layers.batch_tensors import BatchTensors
from shared.engine.layers.kv_cache import copy_blocks
from shared.engine.layers.model import Model
from shared.engine.sampling.prompt_scores import PromptScorer
from shared.engine.scheduling.batch import SKIP_SLOT, HostBatch

SCORED_AT_ONCE = 2 * layers.MIN_ROWS
OnStored = Callable[[int], None]
"""the work that writes K and V of this layer has been started"""


class Runner(Protocol):
    """The model behind an engine."""

    @property
    def runs_ahead(self) -> bool:
        """A call of `run` returns before the device is done, so that the host may put the next
        step together meanwhile."""

    @property
    def device(self) -> torch.device:
        """Where it computes, and its logits lie."""

    @property
    def whole_rows(self) -> int:
        """The most sequences of a step that is started as a whole, where each of them has one
        token; that takes the host little. 0: no step is."""

    def run(
        self,
        batch: HostBatch,
        previous: torch.Tensor | None = None,
        on_stored: OnStored | None = None,
    ) -> torch.Tensor:
        """Do the batch's block copies, write K and V of its T tokens into the pool, and return the
        logits of its logits_rows, [R, vocab_size]. `previous`: i64, the tokens that the step
        before sampled, for a batch that awaits them. `on_stored`: called while the step is
        started, unless it is started as a whole."""

    @property
    def scorer(self) -> PromptScorer:
        """Has what came of the rows that the last batch had to score."""

    def meet(self) -> None:
        """Returns once every rank of the model answers; nothing is in flight meanwhile."""

    def rehearsal(self) -> HostBatch | None:
        """A step nobody asked for: run it, and a later one will not have to wait for what is made
        once. It writes nowhere. None: nothing is left to make."""

    def exercise(self) -> torch.Tensor | None:
        """Do the host's part of a decode step of one row, and start none; nothing is in flight.
        Some logits of one row, [1, vocab_size]; None where no step has had any."""


class ModelRunner:
    """One model and its KV pool on the CPU, bit for bit the same whatever shares a batch."""

    runs_ahead = False
    whole_rows = 0

    def __init__(self, model: Model, kv_pool: torch.Tensor, attention: Attention) -> None:
        self._model = model
        self._kv_pool = kv_pool
        self._attention = attention
        self.device = kv_pool.device
        self.scorer = PromptScorer(model.logits, SCORED_AT_ONCE)

    @torch.inference_mode()
    def run(
        self,
        batch: HostBatch,
        previous: torch.Tensor | None = None,
        on_stored: OnStored | None = None,
    ) -> torch.Tensor:
        """See Runner; logits are f32."""
        tensors = padded(to_tensors(batch, previous), layers.MIN_ROWS)
        copy_blocks(self._kv_pool, tensors.copies)
        attention = watched(self._attention, on_stored)
        hidden = self._model.forward(tensors, self._kv_pool, attention)
        if batch.scores is not None:
            self.scorer.score(batch.scores, hidden)
        logits = self._model.logits(hidden.index_select(0, tensors.logits_rows))
        return logits[: batch.shape.num_logits_rows].float()

    def meet(self) -> None:
        """There is no other."""

    def rehearsal(self) -> HostBatch | None:
        return None

    def exercise(self) -> torch.Tensor | None:
        """The host's part is the whole step."""
        return None


def watched(attention: Attention, on_stored: OnStored | None) -> Attention:
    """Attention of a layer begins once its K and V are stored: tell so then."""
    if on_stored is None:
        return attention

    def attend(
        queries: torch.Tensor,
        kv_pool: torch.Tensor,
        layer: int,
        batch: BatchTensors,
        scale: float,
        window: int = 0,
    ) -> torch.Tensor:
        on_stored(layer)
        return attention(queries, kv_pool, layer, batch, scale, window)

    return attend


def to_tensors(batch: HostBatch, previous: torch.Tensor | None = None) -> BatchTensors:
    """The tensors of a step on the CPU. `previous`: i64, the tokens the step before sampled."""
    input_ids = torch.from_numpy(batch.input_ids).long()
    if batch.awaits_tokens:
        assert previous is not None
        ahead = previous.index_select(0, (-1 - input_ids).clamp_(min=0))
        input_ids = torch.where(input_ids < 0, ahead, input_ids)
    return BatchTensors(
        input_ids=input_ids,
        positions=torch.from_numpy(batch.positions).long(),
        slot_mapping=torch.from_numpy(batch.slot_mapping).long(),
        context_lens=torch.from_numpy(batch.context_lens),
        block_tables=torch.from_numpy(batch.block_tables),
        logits_rows=torch.from_numpy(batch.logits_rows).long(),
        copies=torch.from_numpy(batch.copies).long(),
        query_lens=tuple(batch.query_lens.tolist()),
        context_lens_host=tuple(batch.context_lens.tolist()),
    )


def padded(batch: BatchTensors, min_rows: int) -> BatchTensors:
    """At least `min_rows` rows and logits rows; the added ones belong to no sequence, are stored
    nowhere and repeat token 0 (see shared.engine.layers.matrices for why they exist)."""
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
