"""The KV pool of one rank, as the model writes it and as other workers reach it."""

import logging
from dataclasses import dataclass

import torch

from kernels.launching.driver import DriverError
from shared.engine.handover.marks import Marks, host_marks
from shared.engine.handover.shared_pool import SharedPool
from shared.engine.layers.kv_cache import device_pool, pool_of
from shared.kv.memory import KVMemory
from shared.kv.share import KVShare

logger = logging.getLogger(__name__)

ARENA_BYTES = 128 * 2**20
"""of host memory, for blocks of a GPU on their way to or from a socket; used memory is pinned"""


@dataclass
class KVPool:
    """What the model writes, and what the io process of the worker sees of it."""

    tensor: torch.Tensor
    memory: KVMemory
    """generations, and the blocks where `tensor` is host memory"""
    marks: Marks
    """when steps are done with blocks"""
    share: KVShare
    """what of each block `tensor` holds; blocks travel whole"""
    shared: SharedPool | None = None
    """owns `tensor`: other workers of this host map it"""


def host_pool(memory: KVMemory) -> KVPool:
    """Pool and memory are the same bytes, so other workers of this host can map it."""
    share = KVShare(memory.layout)
    return KVPool(pool_of(memory), memory, host_marks(share), share)


def create_pool(
    share: KVShare, num_blocks: int, device: torch.device, *, shared: bool = False
) -> KVPool:
    """`shared`: other workers of this host are to map a GPU's pool, if its driver lets them.

    Blocks of a rank that has others next to it travel through the arena, also on a CPU: there they
    are whole.

    On a CPU the pages are touched now, so a shortage of memory shows at start-up and usage stays
    constant afterwards.
    """
    whole, layout = share.whole, share.layout
    if device.type == "cpu" and share.size == 1:
        pool = host_pool(KVMemory.create(whole, num_blocks))
        pool.tensor.zero_()
        return pool
    memory = KVMemory.create(whole, num_blocks, max(ARENA_BYTES, 2 * whole.block_bytes))
    if device.type == "cpu":
        tensor = device_pool(layout, num_blocks, device).zero_()
        return KVPool(tensor, memory, host_marks(share), share)
    marks = Marks(share.groups.layer_ends, _event, share.size)
    if shared:
        try:
            shared_pool = SharedPool(memory)
        except DriverError as error:
            logger.warning("no other worker can map this GPU's KV pool: %s", error)
        else:
            return KVPool(shared_pool.tensor, memory, marks, share, shared_pool)
    return KVPool(device_pool(layout, num_blocks, device), memory, marks, share)


def _event() -> torch.cuda.Event:
    """The work that was started on the current stream so far."""
    event = torch.cuda.Event()
    event.record()
    return event
