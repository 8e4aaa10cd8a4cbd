"""How many KV blocks a worker has. Imports no torch: `baton up` asks before anything starts.

    --kv-blocks      that many
    on a CPU         what --kv-memory-mib holds
    on a GPU         what the model leaves free there (`MemoryProfile`)
    several ranks    the least of theirs: a block id means the same on each

A GPU's memory:

    total x utilization = others + weights + activations + graphs + KV pool

`others` is what is in use besides torch's tensors: the driver's context, communication, other
processes. Activations are measured: the largest step the settings allow is run once.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shared.engine.scheduling.block_pool import MIN_BLOCKS
from shared.errors import SettingsError
from shared.kv.layout import KVLayout
from shared.settings.groups import KVSettings

logger = logging.getLogger(__name__)

GRAPH_SHARE = 0.005
"""of the GPU's memory, for captured graphs: measured 0.3 GB for 40 of them on an H200"""
SAMPLING_BYTES = 14
"""by sequence and token of the vocabulary: logits of a decode step, and adjusted ones, counts and
biases where sequences have such"""
MIB = 2**20
GIB = 2**30


@dataclass(frozen=True)
class MemoryProfile:
    """Bytes on one GPU."""

    total_bytes: int
    utilization: float
    others_bytes: int
    weights_bytes: int
    activations_bytes: int

    @property
    def graphs_bytes(self) -> int:
        return int(GRAPH_SHARE * self.total_bytes)

    @property
    def kv_bytes(self) -> int:
        """What is left for the KV pool; may be negative."""
        used = self.others_bytes + self.weights_bytes + self.activations_bytes + self.graphs_bytes
        return int(self.total_bytes * self.utilization) - used

    def __str__(self) -> str:
        parts = {
            "weights": self.weights_bytes,
            "activations": self.activations_bytes,
            "graphs": self.graphs_bytes,
            "others": self.others_bytes,
            "KV": self.kv_bytes,
        }
        listed = ", ".join(f"{name} {size / GIB:.2f}" for name, size in parts.items())
        limit = self.total_bytes * self.utilization / GIB
        return f"{limit:.1f} of {self.total_bytes / GIB:.1f} GiB may be used: {listed}"


Ways = Callable[[MemoryProfile, int], Sequence[str]]
"""(what was measured, bytes wanted for KV) -> flags, each of which alone makes room for them"""


def count_blocks(
    kv: KVSettings,
    layout: KVLayout,
    least: Callable[[int], int],
    profile: Callable[[], MemoryProfile] | None = None,
    ways: Ways | None = None,
) -> int:
    """Blocks of this rank's pool; every rank of a model calls it. SettingsError, which says what
    would help, if too few fit.

    `least`: the least of what all ranks pass to it. `profile` measures this rank's GPU, with only
    the weights on it; None on a CPU. `ways`: what would make room.
    """
    check_enough_blocks(kv)
    if kv.blocks:
        return least(kv.blocks)
    if profile is None:
        return least(blocks_in_host_memory(kv.memory_mib, layout.block_bytes))
    measured = profile()
    num_blocks = blocks_on_gpu(measured, layout.block_bytes, ways)
    logger.info("memory in GiB: %s, %d KV blocks", measured, num_blocks)
    return least(num_blocks)


def check_enough_blocks(kv: KVSettings) -> None:
    """SettingsError if --kv-blocks names a pool that is too small."""
    if 0 < kv.blocks < MIN_BLOCKS:
        raise SettingsError(
            f"--kv-blocks {kv.blocks}: the smallest pool takes {MIN_BLOCKS} KV blocks; "
            f"--kv-blocks {MIN_BLOCKS}, or without it as many as fit"
        )


def blocks_in_host_memory(memory_mib: int, block_bytes: int) -> int:
    """SettingsError if too few fit."""
    num_blocks = memory_mib * MIB // block_bytes
    if num_blocks < MIN_BLOCKS:
        enough_mib = -(-MIN_BLOCKS * block_bytes // MIB)
        raise SettingsError(
            f"--kv-memory-mib leaves room for {num_blocks} KV blocks of {block_bytes} bytes, "
            f"needs {MIN_BLOCKS}: --kv-memory-mib {enough_mib} is the least"
        )
    return num_blocks


def blocks_on_gpu(profile: MemoryProfile, block_bytes: int, ways: Ways | None = None) -> int:
    """SettingsError if too few fit; it says each of `ways`, or in general what makes room."""
    num_blocks = profile.kv_bytes // block_bytes
    if num_blocks < MIN_BLOCKS:
        flags = ways(profile, MIN_BLOCKS * block_bytes) if ways else ()
        raise SettingsError(
            f"the model leaves no room for {MIN_BLOCKS} KV blocks of {block_bytes} bytes. GiB: "
            f"{profile}. {_advice(flags)}"
        )
    return num_blocks


def _advice(flags: Sequence[str]) -> str:
    if not flags:
        return (
            "A higher --gpu-memory-utilization, a lower --max-num-batched-tokens or "
            "--max-num-seqs, or more GPUs (--tp) make room; `baton capacity` says how much of "
            "them, and what fits at all"
        )
    each = " or ".join(flags)
    return f"A worker starts with {each}, and more of it makes room for more KV"


def check_gpus_suffice(tps: Sequence[int], *, kv_blocks: int, num_gpus: int) -> None:
    """SettingsError if workers would share a GPU of which each takes all that fits, or one has
    more ranks than there are GPUs.

    `tps`: ranks of each worker. `num_gpus`: 0 where workers run on a CPU.
    """
    if num_gpus == 0:
        return
    if max(tps) > num_gpus:
        raise SettingsError(
            f"a worker with tp {max(tps)} takes {max(tps)} GPUs, and there are {num_gpus}: a "
            "smaller --tp"
        )
    if sum(tps) > num_gpus and not kv_blocks:
        raise SettingsError(
            f"{len(tps)} workers on {num_gpus} GPUs take {sum(tps)}, and nearly all of each: "
            "fewer workers, a smaller --tp, --topology agg, or --kv-blocks, which are the blocks "
            "of each worker"
        )
