"""The KV pool of one rank, and how its blocks get to other workers."""

from dataclasses import dataclass

import torch

from shared.engine.handover.hand_overs import HandOvers
from shared.engine.handover.marks import Marks, host_marks
from shared.engine.handover.shared_pool import SharedPool
from shared.engine.handover.staging import HostStaging
from shared.engine.layers.kv_cache import device_pool, pool_of
from shared.engine.scheduling.block_pool import BlockPool
from shared.kv.layer_groups import layer_groups
from shared.kv.layout import KVLayout
from shared.kv.memory import KVMemory


@dataclass(frozen=True)
class KVPool:
    """What the model writes, and what the io process of the worker sees of it."""

    tensor: torch.Tensor
    memory: KVMemory
    """generations, and the blocks where `tensor` is host memory or is staged"""
    staging: HostStaging | None = None
    """carries blocks between `tensor` and `memory`"""
    shared: SharedPool | None = None
    """owns `tensor`: other workers of this host map it"""

    def hand_overs(self, blocks: BlockPool) -> HandOvers:
        """Of an engine that schedules these blocks."""
        layout = self.memory.layout
        marks = host_marks(layout)
        if self.tensor.is_cuda:
            marks = Marks(layer_groups(layout).layer_ends, _event)
        return HandOvers(blocks, marks, self.staging, self.shared)


def _event() -> torch.cuda.Event:
    """The work that was started on the current stream so far."""
    event = torch.cuda.Event()
    event.record()
    return event


def create_pool(
    layout: KVLayout, num_blocks: int, device: torch.device, *, shared: bool = False
) -> KVPool:
    """`shared`: other workers of this host are to map a GPU's pool.

    On a CPU pool and memory are the same bytes, so it always is; the pages are touched now, so a
    shortage of memory shows at start-up and usage stays constant afterwards.
    """
    memory = KVMemory.create(layout, num_blocks)
    if device.type == "cpu":
        return KVPool(pool_of(memory).zero_(), memory)
    if shared:
        pool = SharedPool(layout, num_blocks)
        return KVPool(pool.tensor, memory, shared=pool)
    kv_pool = device_pool(layout, num_blocks, device)
    return KVPool(kv_pool, memory, HostStaging(memory, kv_pool))
