"""Whether a model's weights and the smallest KV pool fit into the memory of a device."""

from dataclasses import dataclass

from services.cli.byte_size import MIB, shown
from services.cli.doctor.finding import Finding, fail, failed, ok
from shared.engine.loading.host_room import RankNeed, check_host_room
from shared.engine.loading.pool_size import MemoryProfile, blocks_on_gpu, check_enough_blocks
from shared.errors import SettingsError
from shared.settings.groups import KVSettings

CHECK = "memory"


@dataclass(frozen=True)
class Memory:
    """Of a GPU, or of the machine."""

    total_bytes: int
    free_bytes: int
    on_gpu: bool
    tps: tuple[int, ...] = (1,)
    """ranks of each worker that is to start in it"""


def judge_memory(need: RankNeed, memory: Memory, kv: KVSettings) -> Finding:
    try:
        check_enough_blocks(kv)
    except SettingsError as error:
        return failed(CHECK, error, "a larger --kv-blocks")
    return _judge_gpu(need, memory, kv) if memory.on_gpu else _judge_host(need, memory, kv)


def _judge_gpu(need: RankNeed, memory: Memory, kv: KVSettings) -> Finding:
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


def _judge_host(need: RankNeed, memory: Memory, kv: KVSettings) -> Finding:
    try:
        check_host_room([need] * sum(memory.tps), kv, memory.free_bytes, len(memory.tps))
    except SettingsError as error:
        return failed(CHECK, error, f"--kv-memory-mib {need.block_bytes * 64 // MIB + 1}")
    one = memory.tps[0] * need.host_bytes(kv)
    return ok(CHECK, f"a worker takes {shown(one)}, {shown(memory.free_bytes)} are free")
