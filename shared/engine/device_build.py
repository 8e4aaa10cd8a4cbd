"""The runner of a GPU: weights, a trial of the largest step, and the KV pool in what is left."""

import logging

import torch

from shared.checkpoint import max_model_len
from shared.engine import build
from shared.engine.batch import HostBatch
from shared.engine.build import RunnerParts, load_model, longest
from shared.engine.decode_graphs import DecodeGraphs
from shared.engine.device_runner import DeviceRunner
from shared.engine.device_sampler import DeviceSampler
from shared.engine.device_traits import traits_of
from shared.engine.empty_steps import prompt_step
from shared.engine.kernel_operations import KernelOperations
from shared.engine.kv_cache import device_pool
from shared.engine.memory_profile import MemoryProfile, measure
from shared.engine.paged_attention import PagedAttention
from shared.engine.parallel.ranks import Ranks
from shared.engine.step_inputs import StepInputs
from shared.engine.warm_up import warm_up
from shared.engine.weights import WeightReader
from shared.kv_layout import KVLayout, num_blocks_for
from shared.settings import Settings

log = logging.getLogger(__name__)

SAMPLING_BYTES = 14
"""by sequence and token of the vocabulary: logits of a decode step, and adjusted ones, counts and
biases where sequences have such"""


def build_device_runner(
    settings: Settings, reader: WeightReader, layout: KVLayout, ranks: Ranks
) -> RunnerParts:
    """SettingsError if the model does not fit; it says what would help."""
    device, config = reader.device, reader.shard.config
    torch.cuda.set_device(device)
    traits = traits_of(device)
    length = max_model_len(config, settings.max_model_len)
    model = load_model(config, reader, length, KernelOperations(device, traits), ranks)
    attention = PagedAttention(config.num_heads, config.windows, traits)
    max_tokens = settings.tokens_per_step(device.type)
    max_seqs = settings.running_seqs(device.type)
    inputs = StepInputs(max_tokens, max_seqs, num_blocks_for(length, layout.block_size), device)

    def runner_over(kv_pool: torch.Tensor) -> DeviceRunner:
        graphs = DecodeGraphs(max_seqs)
        return DeviceRunner(model, kv_pool, attention, inputs, graphs, eager=settings.eager)

    num_blocks = settings.kv_blocks
    if not num_blocks:
        smallest = runner_over(device_pool(layout, 1, device))
        num_tokens = min(max_tokens, max_seqs * length)
        step = prompt_step(num_tokens, max_seqs, length, layout.block_size)
        profile = _profile(settings, smallest, step, SAMPLING_BYTES * max_seqs * config.vocab_size)
        num_blocks = profile.num_blocks(layout.block_bytes)
        log.info("memory in GiB: %s, %d KV blocks", profile, num_blocks)
        del smallest
    num_blocks = ranks.least(num_blocks)
    kv_pool, memory, staging = build.create_pool(layout, num_blocks, device)
    runner = runner_over(kv_pool)
    sampler = DeviceSampler(config.vocab_size, device)
    warm_up(runner, sampler, max_tokens, length, layout.block_size)
    return RunnerParts(runner, sampler, memory, staging, longest(length, layout, num_blocks))


def _profile(
    settings: Settings, runner: DeviceRunner, step: HostBatch, sampling_bytes: int
) -> MemoryProfile:
    """What this step takes, over a pool of one block that nothing is stored in, beside what comes
    to be held for sampling."""
    device = runner.kv_pool.device

    def run() -> None:
        held = torch.empty(sampling_bytes, dtype=torch.uint8, device=device)
        runner.run_eagerly(step).float().argmax(dim=-1)
        del held

    return measure(device, settings.gpu_memory_utilization, run)
