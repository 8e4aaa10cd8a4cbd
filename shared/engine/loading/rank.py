"""Builds one rank of a model: all of it where there is only one."""

import logging
from functools import partial

from shared.engine.handover.kv_pool import create_pool
from shared.engine.handover.shared_pool import PoolKind
from shared.engine.layers.attention import TiledAttention
from shared.engine.layers.kv_cache import TORCH_DTYPES
from shared.engine.layers.matrices import MIN_ROWS, row_invariant
from shared.engine.layers.model import Model
from shared.engine.layers.operations import TorchOperations
from shared.engine.layers.shard import Shard
from shared.engine.layers.weights import WeightReader
from shared.engine.loading.device_rates import BRIEF, measure_ceilings
from shared.engine.loading.devices import resolve_device, set_threads
from shared.engine.loading.host_memory import free_memory
from shared.engine.loading.host_room import RankNeed, check_host_room
from shared.engine.loading.memory_use import memory_of_process
from shared.engine.loading.pool_size import count_blocks
from shared.engine.loading.runner_parts import RunnerParts, load_model, longest
from shared.engine.loading.tuning.step_tuner import step_tuner
from shared.engine.loading.tuning.tuner import Tuner
from shared.engine.parallel.ranks import Ranks
from shared.engine.running.model_runner import ModelRunner
from shared.engine.running.step_figures import Yardstick
from shared.engine.sampling.sampler import Sampler
from shared.kv.share import KVShare
from shared.model.checkpoint import Checkpoint, kv_layout, max_model_len, resolve_dtype
from shared.model.model_size import ModelSize
from shared.model.parameters import num_weight_bytes
from shared.settings.groups import ComputeSettings, EngineSettings, KVSettings

logger = logging.getLogger(__name__)


def build_rank(
    compute: ComputeSettings,
    kv: KVSettings,
    engine: EngineSettings,
    checkpoint: Checkpoint,
    ranks: Ranks,
    weights: type[WeightReader] = WeightReader,
    pool_kind: PoolKind = "private",
) -> RunnerParts:
    """Every rank of a model calls this, and all get pools of one size.

    SettingsError if the model does not fit, ModelError if its weights are not as config.json says.
    """
    device = resolve_device(compute.device, ranks.rank)
    set_threads(engine.threads, device)
    dtype = resolve_dtype(compute.dtype, checkpoint.config, device.type)
    shard = Shard(checkpoint.config, ranks.rank, ranks.size)
    layout = kv_layout(checkpoint, dtype, kv.block_size, compute.max_model_len)
    share = KVShare(layout, ranks.rank, ranks.size)
    length = max_model_len(checkpoint.config, compute.max_model_len)
    with weights(checkpoint, TORCH_DTYPES[dtype], device, shard) as reader:
        tuner = step_tuner(engine, layout, length, device, ranks)
        if device.type == "cpu":
            return _build_cpu_rank(kv, tuner, length, reader, share, ranks)
        # A CPU engine must not pay for triton's import.
        from shared.engine.loading.device_rank import build_device_rank  # noqa: PLC0415

        return build_device_rank(kv, tuner, length, reader, share, ranks, pool_kind)


def _build_cpu_rank(
    kv: KVSettings, tuner: Tuner, length: int, reader: WeightReader, share: KVShare, ranks: Ranks
) -> RunnerParts:
    """`length`: tokens of the longest sequence. SettingsError where this machine's free memory is
    less than all ranks take: a pool beyond it would fill swap, or end the machine's processes."""
    shard, layout = reader.shard, share.layout
    weights_bytes = num_weight_bytes(shard.model, layout.dtype, shard.size)
    need = RankNeed(weights_bytes, layout.block_bytes)
    check_host_room([need] * shard.size, kv, free_memory()[1])
    model = load_model(shard.config, reader, length, TorchOperations(), ranks)
    check_arithmetic(model)
    num_blocks = count_blocks(kv, layout, ranks.least)
    pool = create_pool(share, num_blocks, reader.device)
    runner = ModelRunner(model, pool.tensor, TiledAttention())
    return RunnerParts(
        runner,
        Sampler(),
        pool,
        longest(length, layout, num_blocks),
        tuner.find(lambda: (runner, num_blocks)),
        Yardstick(
            ModelSize.of(shard.model, layout.dtype, shard.size),
            measure_ceilings(reader.device, TORCH_DTYPES[layout.dtype], BRIEF),
            partial(max, MIN_ROWS),
        ),
        lambda: memory_of_process(weights_bytes, pool),
    )


def check_arithmetic(model: Model) -> bool:
    """Whether this machine's BLAS keeps the promise of exact answers; logs a warning if not."""
    shapes = {linear.weight.shape: linear for linear in model.linears}
    exact = all(map(row_invariant, shapes.values()))
    if not exact:
        logger.warning(
            "matrix products on this machine depend on their number of rows: "
            "an answer's last bits may depend on what shares its batch"
        )
    return exact
