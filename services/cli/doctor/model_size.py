"""Whether a model's weights and the smallest KV pool fit into the memory of a device."""

from dataclasses import dataclass

from services.cli.byte_size import MIB, shown
from services.cli.doctor.finding import Finding, fail, failed, ok, warn
from shared.engine.loading.pool_size import MemoryProfile, blocks_in_host_memory, blocks_on_gpu
from shared.errors import SettingsError
from shared.kv.share import KVShare
from shared.model.checkpoint import Checkpoint, kv_layout, resolve_dtype
from shared.model.parameters import num_weight_bytes
from shared.settings.groups import KVSettings, Settings

CHECK = "memory"


@dataclass(frozen=True)
class Memory:
    """Of a GPU, or of the machine."""

    total_bytes: int
    free_bytes: int
    on_gpu: bool
    num_workers: int = 1
    """that `baton up` starts on it"""


@dataclass(frozen=True)
class ModelNeed:
    """What one rank of a worker holds."""

    weights_bytes: int
    block_bytes: int


def need_of(checkpoint: Checkpoint, settings: Settings, device_type: str) -> ModelNeed:
    compute = settings.compute
    dtype = resolve_dtype(compute.dtype, checkpoint.config, device_type)
    weights = num_weight_bytes(checkpoint.config, dtype, compute.tp)
    layout = kv_layout(checkpoint, dtype, settings.kv.block_size)
    return ModelNeed(weights, KVShare(layout, size=compute.tp).layout.block_bytes)


def judge_memory(need: ModelNeed, memory: Memory, kv: KVSettings) -> Finding:
    return _judge_gpu(need, memory, kv) if memory.on_gpu else _judge_host(need, memory, kv)


def _judge_gpu(need: ModelNeed, memory: Memory, kv: KVSettings) -> Finding:
    """By the worker's own count of blocks, less what only a trial can measure."""
    others = memory.total_bytes - memory.free_bytes
    utilization = kv.gpu_memory_utilization
    profile = MemoryProfile(memory.total_bytes, utilization, others, need.weights_bytes, 0)
    try:
        num_blocks = blocks_on_gpu(profile, need.block_bytes)
    except SettingsError as error:
        seen, _, advice = str(error).partition(". A ")
        return fail(CHECK, seen, f"a {advice}; `nvidia-smi` names its other processes")
    return ok(CHECK, f"room for about {num_blocks:,} KV blocks next to the weights")


def _judge_host(need: ModelNeed, memory: Memory, kv: KVSettings) -> Finding:
    try:
        num_blocks = kv.blocks or blocks_in_host_memory(kv.memory_mib, need.block_bytes)
    except SettingsError as error:
        return failed(CHECK, error, f"--kv-memory-mib {need.block_bytes * 64 // MIB + 1}")
    one = need.weights_bytes + num_blocks * need.block_bytes
    seen = f"a worker takes {shown(one)}, {shown(memory.free_bytes)} are free"
    less = "a smaller model, --dtype bfloat16 or a lower --kv-memory-mib"
    if one > memory.free_bytes:
        return fail(CHECK, seen, f"{less}, or a machine with more memory")
    if memory.num_workers * one > memory.free_bytes:
        several = f"{seen}, and `baton up` starts {memory.num_workers}"
        return warn(CHECK, several, f"{less}, or --topology agg, which starts one")
    return ok(CHECK, seen)
