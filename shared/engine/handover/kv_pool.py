"""The KV pool of one rank, as the model writes it and as other workers reach it."""

import logging
from dataclasses import dataclass

import torch

from kernels.launching.driver import DriverError
from shared.engine.handover.marks import Marks, host_marks
from shared.engine.handover.shared_pool import PoolKind, SharedPool
from shared.engine.layers.kv_cache import device_pool, pool_of
from shared.kv.memory import KVMemory
from shared.kv.share import KVShare

logger = logging.getLogger(__name__)

ARENA_BYTES = 128 * 2**20
"""of host memory, for blocks of a GPU on their way to or from a socket; used memory is pinned"""


@dataclass
class KVPool:
    """What a rank writes, and what the io process of the worker sees of it."""

    tensor: torch.Tensor
    memory: KVMemory
    """generations, and the blocks where `tensor` is host memory of a rank that is alone"""
    marks: Marks
    """when steps are done with blocks"""
    share: KVShare
    """what of each block `tensor` holds; blocks travel whole"""
    shared: SharedPool | KVMemory | None = None
    """owns `tensor`, if not `memory` does: other workers of this host map it"""
    others: tuple[int, ...] | None = ()
    """descriptors of the pools of all other ranks; None: not all can be mapped"""

    def use(self, memory: KVMemory) -> None:
        """That of rank 0, whose probe all ranks show."""
        self.memory = memory
        if isinstance(self.shared, SharedPool):
            self.shared.write_probe(memory.probe)
        elif self.shared is not None:
            self.shared.probe[:] = memory.probe[: len(self.shared.probe)]

    def descriptor(self) -> int | None:
        """A new one by which others map this rank's pool, which the caller closes; None: by that
        of `memory`, or not at all."""
        if isinstance(self.shared, SharedPool):
            return self.shared.descriptor()
        return None if self.shared is None else self.shared.read_only()


def host_pool(memory: KVMemory) -> KVPool:
    """Pool and memory are the same bytes, so other workers of this host can map it."""
    share = KVShare(memory.layout)
    return KVPool(pool_of(memory), memory, host_marks(share), share)


def create_pool(
    share: KVShare, num_blocks: int, device: torch.device, kind: PoolKind = "private"
) -> KVPool:
    """`kind`: of a GPU's pool. It is private where its driver lets nobody map it.

    Blocks of a rank that has others next to it go to sockets through the arena, also on a CPU:
    there they are whole.

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
        own = KVMemory.create(layout, num_blocks)
        pool = KVPool(pool_of(own).zero_(), memory, host_marks(share), share, own)
        pool.use(memory)
        return pool
    marks = Marks(share.groups.layer_ends, _event, share.size)
    if kind != "private":
        try:
            shared_pool = SharedPool(layout, num_blocks, mapped=kind == "mapped")
        except DriverError as error:
            logger.warning("no other worker can map this GPU's KV pool: %s", error)
        else:
            pool = KVPool(shared_pool.tensor, memory, marks, share, shared_pool)
            pool.use(memory)
            return pool
    return KVPool(device_pool(layout, num_blocks, device), memory, marks, share)


def _event() -> torch.cuda.Event:
    """The work that was started on the current stream so far."""
    event = torch.cuda.Event()
    event.record()
    return event
