"""Builds the rank of a GPU: weights, a trial of the largest step, and a KV pool in what is left."""

from dataclasses import replace
from functools import partial

import torch

from shared.engine.handover.kv_pool import create_pool
from shared.engine.handover.shared_pool import PoolKind
from shared.engine.layers.device_traits import traits_of
from shared.engine.layers.kv_cache import TORCH_DTYPES, device_pool
from shared.engine.layers.shard import Shard
from shared.engine.layers.weights import WeightReader
from shared.engine.loading.device_form import DeviceForm, DeviceModel
from shared.engine.loading.device_rates import BRIEF, measure_ceilings
from shared.engine.loading.kernel_compilation import KernelCompilation
from shared.engine.loading.memory_trial import measure
from shared.engine.loading.memory_use import memory_of_gpu
from shared.engine.loading.pool_size import SAMPLING_BYTES, MemoryProfile, count_blocks
from shared.engine.loading.room_advice import StepForm, check_weights_fit, ways_to_room
from shared.engine.loading.runner_parts import RunnerParts, longest
from shared.engine.loading.tuning.tuner import Tuner
from shared.engine.loading.warm_up import warm_up
from shared.engine.parallel.ranks import Ranks
from shared.engine.running.device_runner import DeviceRunner
from shared.engine.running.step_figures import Yardstick
from shared.kv.share import KVShare
from shared.model.model_size import ModelSize
from shared.model.parameters import num_weight_bytes
from shared.settings.groups import KVSettings

TRIAL_SHARE = 0.25
"""of the memory next to the weights, for the KV that timed steps read"""


def build_device_rank(
    kv: KVSettings,
    tuner: Tuner,
    length: int,
    reader: WeightReader,
    share: KVShare,
    ranks: Ranks,
    pool_kind: PoolKind,
) -> RunnerParts:
    """For sequences of up to `length` tokens. SettingsError if the model does not fit; it says
    what would help."""
    device = reader.device
    torch.cuda.set_device(device)
    form = DeviceForm(
        config=reader.shard.model,
        share=share,
        length=length,
        max_tokens=tuner.largest.num_tokens,
        max_seqs=tuner.largest.num_seqs,
        traits=traits_of(device),
    )
    check_weights_fit(_step_form(form), torch.cuda.mem_get_info(device)[0])
    with KernelCompilation(form) as compilation:
        model = DeviceModel(form, reader, ranks)
        compilation.wait()

    weights_bytes = torch.cuda.memory_allocated(device)
    eager = tuner.engine.eager

    def trial() -> tuple[DeviceRunner, int]:
        num_blocks = ranks.least(_num_trial_blocks(form, tuner.num_blocks, device))
        return model.runner(device_pool(form.layout, num_blocks, device), eager=eager), num_blocks

    step_size = tuner.find(trial)
    form = replace(form, max_tokens=step_size.num_tokens, max_seqs=step_size.num_seqs)
    if tuner.engine.tune:
        model.resize(form)

    def profile() -> MemoryProfile:
        return _measure_largest_step(form, model, device, kv.gpu_memory_utilization)

    layout = share.layout
    ways = partial(ways_to_room, _step_form(form))
    num_blocks = count_blocks(kv, layout, ranks.least, profile, ways)
    dtype = layout.dtype
    ceilings = measure_ceilings(device, TORCH_DTYPES[dtype], BRIEF)
    pool = create_pool(share, num_blocks, device, pool_kind)
    runner = model.runner(pool.tensor, eager=eager)
    sampler = form.sampler(device)
    warm_up(runner, sampler, form.max_tokens, length, layout.block_size)
    return RunnerParts(
        runner,
        sampler,
        pool,
        longest(length, layout, num_blocks),
        step_size,
        Yardstick(ModelSize.of(form.config, dtype, share.size), ceilings, runner.graphs.size_for),
        lambda: memory_of_gpu(device, weights_bytes, pool),
    )


def _num_trial_blocks(form: DeviceForm, num_wanted: int, device: torch.device) -> int:
    """As many as are wanted, or fit into TRIAL_SHARE."""
    fitting = int(TRIAL_SHARE * torch.cuda.mem_get_info(device)[0]) // form.layout.block_bytes
    return max(1, min(num_wanted, fitting))


def _step_form(form: DeviceForm) -> StepForm:
    config = form.config

    def weights_of(num_ranks: int) -> int:
        Shard(config, 0, num_ranks)  # ModelError if it cannot be split so
        return num_weight_bytes(config, form.layout.dtype, num_ranks)

    seq_bytes = SAMPLING_BYTES * config.vocab_size
    return StepForm(form.max_tokens, form.max_seqs, seq_bytes, form.share.size, weights_of)


def _measure_largest_step(
    form: DeviceForm, model: DeviceModel, device: torch.device, utilization: float
) -> MemoryProfile:
    """Memory the largest step needs, measured with an empty one-block pool plus the sampling
    buffers."""
    smallest = model.runner(device_pool(form.layout, 1, device), eager=True)
    step = form.largest_step()
    sampling_bytes = SAMPLING_BYTES * form.max_seqs * form.config.vocab_size

    def largest_step() -> None:
        held = torch.empty(sampling_bytes, dtype=torch.uint8, device=device)
        smallest.run_eagerly(step).float().argmax(dim=-1)
        del held

    return measure(device, utilization, largest_step)
