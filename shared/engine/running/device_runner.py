"""Runs the model on a GPU: steps of single tokens as captured graphs, all else kernel by kernel.

The host never waits here. It puts a step together, starts it and goes on to the next, while the
ids of sampled tokens stay on the device.
"""

from dataclasses import dataclass

import torch

from kernels.attention.decode_plan import DecodePlan
from shared.engine.layers.batch_tensors import BatchTensors
from shared.engine.layers.kv_cache import copy_blocks
from shared.engine.layers.model import Model
from shared.engine.layers.paged_attention import PagedAttention
from shared.engine.layers.row_sizes import scored_at_once
from shared.engine.running.decode_graphs import DecodeGraphs
from shared.engine.running.empty_steps import decode_step
from shared.engine.running.model_runner import OnStored, watched
from shared.engine.running.step_inputs import StepInputs
from shared.engine.sampling.prompt_scores import PromptScorer
from shared.engine.scheduling.batch import HostBatch


class DeviceRunner:
    """One model and its KV pool on one GPU; see shared.engine.running.model_runner.Runner."""

    runs_ahead = True

    def __init__(
        self,
        model: Model,
        kv_pool: torch.Tensor,
        attention: PagedAttention,
        inputs: StepInputs,
        graphs: DecodeGraphs,
        *,
        eager: bool = False,
    ) -> None:
        """`eager`: decode steps too run kernel by kernel, padded all the same."""
        self._model = model
        self.kv_pool = kv_pool
        self.device = kv_pool.device
        self.whole_rows = 0 if eager else graphs.sizes[-1]
        self._attention = attention
        self._inputs = inputs
        self.graphs = graphs
        self._eager = eager
        self._steps: dict[int, DecodeStep] = {}
        self._logits = torch.empty(0)
        self.scorer = PromptScorer(model.logits, scored_at_once(inputs.max_sequences))

    @torch.inference_mode()
    def run(
        self,
        batch: HostBatch,
        previous: torch.Tensor | None = None,
        on_stored: OnStored | None = None,
    ) -> torch.Tensor:
        """Step 7 on a GPU, and step 5's prompts: see Runner. Logits are of the model's type, and
        valid until the next call."""
        return self._run(batch, previous, on_stored, eager=self._eager)

    @torch.inference_mode()
    def run_eagerly(self, batch: HostBatch) -> torch.Tensor:
        """The same kernel by kernel; no graph is captured."""
        return self._run(batch, None, None, eager=True)

    def meet(self) -> None:
        """There is no other."""

    def rehearsal(self) -> HostBatch | None:
        """See Runner: a decode step of the largest size that has no graph yet."""
        missing = () if self._eager else self.graphs.missing
        return decode_step(missing[-1]) if missing else None

    @torch.inference_mode()
    def exercise(self) -> torch.Tensor | None:
        """See Runner: input is put together and copied, and no step reads it."""
        if not self._logits.numel():
            return None
        self._inputs.upload(decode_step(1), None, self.graphs.size_for(1))
        return self._logits[:1]

    def _run(
        self,
        batch: HostBatch,
        previous: torch.Tensor | None,
        on_stored: OnStored | None,
        *,
        eager: bool,
    ) -> torch.Tensor:
        shape = batch.shape
        if not (shape.has_chunks or shape.num_copies or batch.scores is not None):
            return self._decode(batch, previous, eager=eager)
        tensors = self._inputs.upload(batch, previous)
        if shape.num_copies:
            copy_blocks(self.kv_pool, tensors.copies)
        self._attention.begin(tensors, self.kv_pool)
        hidden = self._model.forward(tensors, self.kv_pool, watched(self._attention, on_stored))
        if batch.scores is not None:
            self.scorer.score(batch.scores, hidden)
        if not shape.num_logits_rows:
            return hidden[:0]
        return self._model.logits(hidden.index_select(0, tensors.logits_rows))

    def _decode(
        self, batch: HostBatch, previous: torch.Tensor | None, *, eager: bool
    ) -> torch.Tensor:
        num_rows = batch.shape.num_tokens
        size = self.graphs.size_for(num_rows)
        self._inputs.upload(batch, previous, size)
        if (step := self._steps.get(size)) is None:
            step = self._steps[size] = self._decode_step(size)
        if eager:
            step()
        else:
            self.graphs.run(size, step)
        if batch.shape.num_logits_rows == num_rows:
            return step.logits[:num_rows]
        return step.logits.index_select(0, self._inputs.logits_rows(batch.shape))

    def _decode_step(self, size: int) -> "DecodeStep":
        if not self._logits.numel():
            self._logits = self.kv_pool.new_empty(
                self._inputs.max_sequences, self._model.vocab_size
            )
        tensors = self._inputs.decode_batch(size)
        plans = self._attention.allocate(tensors.context_lens, self.kv_pool)
        return DecodeStep(
            self._model, self.kv_pool, self._attention, tensors, plans, self._logits[:size]
        )


@dataclass(frozen=True)
class DecodeStep:
    """A step in which a fixed number of sequences decode, at fixed addresses."""

    model: Model
    kv_pool: torch.Tensor
    attention: PagedAttention
    tensors: BatchTensors
    plans: dict[int, DecodePlan]
    logits: torch.Tensor
    """[num_rows, vocab_size], written by every call"""

    def __call__(self) -> None:
        self.attention.begin(self.tensors, self.kv_pool, self.plans)
        hidden = self.model.forward(self.tensors, self.kv_pool, self.attention)
        self.model.logits(hidden, self.logits)
