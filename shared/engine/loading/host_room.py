"""Whether workers that compute on a CPU find the memory for their weights and KV pools.

Imports no torch: `baton up` asks before anything starts, a worker before it makes its pool.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from shared.engine.loading.pool_size import (
    GIB,
    MIB,
    blocks_in_host_memory,
    check_enough_blocks,
)
from shared.engine.scheduling.block_pool import MIN_BLOCKS
from shared.errors import SettingsError
from shared.kv.share import KVShare
from shared.model.checkpoint import Checkpoint, kv_layout, resolve_dtype
from shared.model.parameters import num_weight_bytes
from shared.settings.groups import ComputeSettings, KVSettings

PROCESSES_BYTES = GIB
"""of a worker: what its processes take next to weights and pool, at most"""
LESS = "a smaller model or --dtype bfloat16, or a machine with more memory"


@dataclass(frozen=True)
class RankNeed:
    """What one rank of a worker holds."""

    weights_bytes: int
    block_bytes: int

    def host_bytes(self, kv: KVSettings) -> int:
        """With its pool, on a CPU. SettingsError if the pool has too few blocks."""
        check_enough_blocks(kv)
        num_blocks = kv.blocks or blocks_in_host_memory(kv.memory_mib, self.block_bytes)
        return self.weights_bytes + num_blocks * self.block_bytes


def need_of(
    checkpoint: Checkpoint, compute: ComputeSettings, block_size: int, device_type: str
) -> RankNeed:
    """By the config alone."""
    dtype = resolve_dtype(compute.dtype, checkpoint.config, device_type)
    weights_bytes = num_weight_bytes(checkpoint.config, dtype, compute.tp)
    layout = kv_layout(checkpoint, dtype, block_size)
    return RankNeed(weights_bytes, KVShare(layout, size=compute.tp).layout.block_bytes)


def check_host_room(
    ranks: Sequence[RankNeed], kv: KVSettings, free_bytes: int, num_workers: int = 1
) -> None:
    """SettingsError, which says what would help, if all `ranks` of `num_workers` workers together
    take more than is free."""
    taken = sum(rank.host_bytes(kv) for rank in ranks)
    if taken <= free_bytes:
        return
    who = "a worker takes" if num_workers == 1 else f"{num_workers} workers take"
    raise SettingsError(
        f"{who} {taken / GIB:.1f} GiB, {free_bytes / GIB:.1f} GiB are free; "
        f"{_advice(ranks, kv, free_bytes, num_workers)}"
    )


def _advice(ranks: Sequence[RankNeed], kv: KVSettings, free_bytes: int, num_workers: int) -> str:
    fewer = ["fewer workers (--topology agg starts one)"] if num_workers > 1 else []
    weights = sum(rank.weights_bytes for rank in ranks)
    room = free_bytes - num_workers * PROCESSES_BYTES - weights
    num_blocks = room // sum(rank.block_bytes for rank in ranks)
    memory_mib = room // (len(ranks) * MIB)
    fewest = min(memory_mib * MIB // rank.block_bytes for rank in ranks)
    if (num_blocks if kv.blocks else fewest) < MIN_BLOCKS:
        return " or ".join([*fewer, LESS])
    pool = f"--kv-blocks {num_blocks}" if kv.blocks else f"--kv-memory-mib {memory_mib}"
    return f"{pool} fits, else " + " or ".join([*fewer, "a machine with more memory"])
