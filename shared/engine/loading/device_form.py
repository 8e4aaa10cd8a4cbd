"""What a rank on a GPU is but for its weights: all that decides which kernels it launches."""

from dataclasses import dataclass, replace

import numpy as np
import torch

from shared.codec import Codec
from shared.engine.layers.device_traits import DeviceTraits
from shared.engine.layers.kernel_operations import KernelOperations
from shared.engine.layers.paged_attention import PagedAttention
from shared.engine.layers.row_sizes import scored_at_once
from shared.engine.layers.weights import WeightReader
from shared.engine.loading.runner_parts import load_model
from shared.engine.parallel.ranks import Ranks
from shared.engine.running.decode_graphs import DecodeGraphs
from shared.engine.running.device_runner import DeviceRunner
from shared.engine.running.empty_steps import prompt_step
from shared.engine.running.step_inputs import StepInputs
from shared.engine.sampling.device_sampler import DeviceSampler
from shared.engine.sampling.score_plan import ScorePlan
from shared.engine.scheduling.batch import HostBatch
from shared.kv.layout import KVLayout, num_blocks_for
from shared.kv.share import KVShare
from shared.model.config import ModelConfig


@dataclass(frozen=True)
class DeviceForm:
    """A model on a kind of GPU under some settings."""

    config: ModelConfig
    """the whole model's"""
    share: KVShare
    """of a rank that shares the model with others, or has it to itself"""
    length: int
    """tokens of the longest sequence"""
    max_tokens: int
    """of a step"""
    max_seqs: int
    """sequences of a step"""
    traits: DeviceTraits

    @property
    def layout(self) -> KVLayout:
        """Of a rank's own pool."""
        return self.share.layout

    def largest_step(self) -> HostBatch:
        """A step of prompts that needs the most memory; some of it is scored, a few rows at a time
        as ever."""
        num_tokens = min(self.max_tokens, self.max_seqs * self.length)
        step = prompt_step(num_tokens, self.max_seqs, self.length, self.layout.block_size)
        rows = np.arange(min(num_tokens, scored_at_once(self.max_seqs)), dtype=np.int32)
        return replace(step, scores=ScorePlan(rows, np.zeros_like(rows), num_top=1))

    def sampler(self, device: torch.device) -> DeviceSampler:
        return DeviceSampler(self.config.vocab_size, device, self.traits.num_multiprocessors)


FORMS = Codec((DeviceForm,))
"""how one travels to another process"""


class DeviceModel:
    """A rank's weights and what its steps share, for runners over one pool or another."""

    def __init__(self, form: DeviceForm, reader: WeightReader, ranks: Ranks) -> None:
        """ModelError if the weights are not as config.json says."""
        config, device = reader.shard.config, reader.device
        operations = KernelOperations(device, form.traits)
        self._model = load_model(config, reader, form.length, operations, ranks)
        self._config = config
        self._device = device
        self.resize(form)

    def resize(self, form: DeviceForm) -> None:
        """Runners that are made from now on take steps of up to that form's sizes, and nothing is
        left of those before: the plan of a step names the pool that it reads."""
        config = self._config
        self._attention = PagedAttention(config.num_heads, config.windows, form.traits)
        table_width = num_blocks_for(form.length, form.layout.block_size)
        self._inputs = StepInputs(form.max_tokens, form.max_seqs, table_width, self._device)
        self._max_seqs = form.max_seqs

    def runner(self, kv_pool: torch.Tensor, *, eager: bool) -> DeviceRunner:
        graphs = DecodeGraphs(self._max_seqs)
        return DeviceRunner(
            self._model, kv_pool, self._attention, self._inputs, graphs, eager=eager
        )
