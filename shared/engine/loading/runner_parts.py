"""What one rank is built from, on whatever device: its model, its KV pool, and both together."""

import importlib
import logging
from collections.abc import Callable
from dataclasses import dataclass

from shared.engine.handover.kv_pool import KVPool
from shared.engine.layers.model import Model
from shared.engine.layers.operations import Operations
from shared.engine.layers.weights import WeightReader
from shared.engine.parallel.model import ParallelModel
from shared.engine.parallel.operations import ParallelOperations
from shared.engine.parallel.ranks import Ranks, SingleRank
from shared.engine.running.model_runner import Runner
from shared.engine.running.step_figures import Yardstick
from shared.engine.sampling.sampled_tokens import TokenSampler
from shared.kv.layout import KVLayout
from shared.model.config import ARCHITECTURES, ModelConfig
from shared.settings.profiles import StepSize

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunnerParts:
    """A runner, and what belongs to the device it runs on."""

    runner: Runner
    sampler: TokenSampler
    pool: KVPool
    max_model_len: int
    """tokens of the longest sequence that the model and the pool allow"""
    step_size: StepSize
    """of the largest step"""
    yardstick: Yardstick
    memory: Callable[[], dict[str, int]]
    """bytes of this rank's device by what they are for, as they are now; see
    shared.engine.loading.memory_use"""


def load_model(
    config: ModelConfig,
    reader: WeightReader,
    length: int,
    operations: Operations,
    ranks: Ranks | None = None,
) -> Model:
    """The model with its weights, for sequences of up to `length` tokens. `ranks`: where `config`
    and the reader's weights are only a part of it."""
    family = importlib.import_module(ARCHITECTURES[config.architecture].module)
    ranks = ranks or SingleRank()
    if ranks.size > 1:
        operations = ParallelOperations(operations, ranks)
    model: Model = family.Model(config, reader, length, operations)
    reader.check_all_read()
    return ParallelModel(model, ranks) if ranks.size > 1 else model


def longest(length: int, layout: KVLayout, num_blocks: int) -> int:
    """Tokens of the longest sequence; logs a warning where the pool is what limits it."""
    limit = min(length, num_blocks * layout.block_size)
    if limit < length:
        logger.warning(
            "longest sequence: %d tokens (limited by the KV pool of %d blocks; the model's is %d)",
            limit,
            num_blocks,
            length,
        )
    return limit
