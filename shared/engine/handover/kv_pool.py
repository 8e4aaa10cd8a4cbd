"""The KV pool of one rank, as the model writes it and as other workers reach it."""

import logging
from dataclasses import dataclass

import torch

from kernels.launching.driver import DriverError
from shared.engine.handover.marks import Marks, host_marks
from shared.engine.handover.shared_pool import SharedPool
from shared.engine.layers.kv_cache import device_pool, pool_of
from shared.kv.layer_groups import layer_groups
from shared.kv.layout import KVLayout
from shared.kv.memory import KVMemory

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
    shared: SharedPool | None = None
    """owns `tensor`: other workers of this host map it"""


def host_pool(memory: KVMemory) -> KVPool:
    """Pool and memory are the same bytes, so other workers of this host can map it."""
    return KVPool(pool_of(memory), memory, host_marks(memory.layout))


def create_pool(
    layout: KVLayout, num_blocks: int, device: torch.device, *, shared: bool = False
) -> KVPool:
    """`shared`: other workers of this host are to map a GPU's pool, if its driver lets them.

    On a CPU the pages are touched now, so a shortage of memory shows at start-up and usage stays
    constant afterwards.
    """
    if device.type == "cpu":
        pool = host_pool(KVMemory.create(layout, num_blocks))
        pool.tensor.zero_()
        return pool
    memory = KVMemory.create(layout, num_blocks, max(ARENA_BYTES, 2 * layout.block_bytes))
    marks = Marks(layer_groups(layout).layer_ends, _event)
    if shared:
        try:
            shared_pool = SharedPool(memory)
        except DriverError as error:
            logger.warning("no other worker can map this GPU's KV pool: %s", error)
        else:
            return KVPool(shared_pool.tensor, memory, marks, shared_pool)
    return KVPool(device_pool(layout, num_blocks, device), memory, marks)


def _event() -> torch.cuda.Event:
    """The work that was started on the current stream so far."""
    event = torch.cuda.Event()
    event.record()
    return event
