"""Builds the rank of a GPU: weights, a trial of the largest step, and a KV pool in what is left."""

import torch

from shared.engine.layers.device_traits import traits_of
from shared.engine.layers.kernel_operations import KernelOperations
from shared.engine.layers.kv_cache import device_pool
from shared.engine.layers.paged_attention import PagedAttention
from shared.engine.layers.weights import WeightReader
from shared.engine.loading.kv_pool import create_pool
from shared.engine.loading.memory_trial import measure
from shared.engine.loading.pool_size import MemoryProfile, count_blocks
from shared.engine.loading.runner_parts import RunnerParts, load_model, longest
from shared.engine.loading.warm_up import warm_up
from shared.engine.parallel.ranks import Ranks
from shared.engine.running.decode_graphs import DecodeGraphs
from shared.engine.running.device_runner import DeviceRunner
from shared.engine.running.empty_steps import prompt_step
from shared.engine.running.step_inputs import StepInputs
from shared.engine.sampling.device_sampler import DeviceSampler
from shared.kv.layout import KVLayout, num_blocks_for
from shared.settings.groups import EngineSettings, KVSettings

SAMPLING_BYTES = 14
"""by sequence and token of the vocabulary: logits of a decode step, and adjusted ones, counts and
biases where sequences have such"""


def build_device_rank(
    kv: KVSettings,
    engine: EngineSettings,
    length: int,
    reader: WeightReader,
    layout: KVLayout,
    ranks: Ranks,
    *,
    shared_pool: bool,
) -> RunnerParts:
    """For sequences of up to `length` tokens. SettingsError if the model does not fit; it says
    what would help."""
    device, config = reader.device, reader.shard.config
    torch.cuda.set_device(device)
    traits = traits_of(device)
    model = load_model(config, reader, length, KernelOperations(device, traits), ranks)
    attention = PagedAttention(config.num_heads, config.windows, traits)
    max_tokens = engine.tokens_per_step(device.type)
    max_seqs = engine.running_seqs(device.type, layout.block_size)
    inputs = StepInputs(max_tokens, max_seqs, num_blocks_for(length, layout.block_size), device)

    def runner_over(kv_pool: torch.Tensor) -> DeviceRunner:
        graphs = DecodeGraphs(max_seqs)
        return DeviceRunner(model, kv_pool, attention, inputs, graphs, eager=engine.eager)

    def profile() -> MemoryProfile:
        """Memory the largest step needs, measured with an empty one-block pool plus the sampling
        buffers."""
        smallest = runner_over(device_pool(layout, 1, device))
        num_tokens = min(max_tokens, max_seqs * length)
        step = prompt_step(num_tokens, max_seqs, length, layout.block_size)
        sampling_bytes = SAMPLING_BYTES * max_seqs * config.vocab_size

        def largest_step() -> None:
            held = torch.empty(sampling_bytes, dtype=torch.uint8, device=device)
            smallest.run_eagerly(step).float().argmax(dim=-1)
            del held

        return measure(device, kv.gpu_memory_utilization, largest_step)

    num_blocks = count_blocks(kv, layout, ranks.least, profile)
    pool = create_pool(layout, num_blocks, device, shared=shared_pool)
    runner = runner_over(pool.tensor)
    sampler = DeviceSampler(config.vocab_size, device)
    warm_up(runner, sampler, max_tokens, length, layout.block_size)
    return RunnerParts(runner, sampler, pool, longest(length, layout, num_blocks))
