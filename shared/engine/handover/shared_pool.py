"""A KV pool in GPU memory that other workers reach, so that nothing is staged.

Prefill's blocks are read where they lie, decode's are filled where they are used.
"""

from typing import Literal

import torch

from shared.engine.layers.kv_cache import TORCH_DTYPES, pool_shape
from shared.kv.layout import KVLayout
from shared.kv.probe import probe_bytes

PoolKind = Literal["private", "mapped", "read"]
"""mapped: by other workers of this host; read: by what UCX finds; private: by nobody"""


class SharedPool:
    """Zero-filled, on the current device; a probe follows its last block, which takes one more
    granule of the driver's at most.

    Memory that can be mapped is virtual memory of the driver, and UCX reads no such memory of
    another GPU over NVLink. Where nobody maps it, it is torch's.
    """

    def __init__(self, layout: KVLayout, num_blocks: int, *, mapped: bool = True) -> None:
        """`layout`: of this rank's pool. DriverError or torch.OutOfMemoryError if the device has
        not as much."""
        # A CPU engine imports this module and has no driver to call.
        from kernels.sharing.shared_memory import SharedMemory  # noqa: PLC0415

        self._end = num_blocks * layout.block_bytes
        num_bytes = self._end + probe_bytes(self._end)
        self._memory = SharedMemory(num_bytes) if mapped else None
        self._bytes = (
            self._memory.tensor((num_bytes,), torch.uint8)
            if self._memory
            else torch.zeros(num_bytes, dtype=torch.uint8, device="cuda")
        )
        blocks = self._bytes[: self._end].view(TORCH_DTYPES[layout.dtype])
        self.tensor = blocks.view(pool_shape(layout, num_blocks))
        """[num_blocks, ...], as `shared.engine.layers.kv_cache` has it"""

    def write_probe(self, probe: memoryview) -> None:
        """Its first bytes, as many as there is room for."""
        room = self._bytes[self._end :]
        room.copy_(torch.frombuffer(probe, dtype=torch.uint8)[: len(room)])

    def descriptor(self) -> int | None:
        """A new descriptor that the pool can be mapped by, which the caller closes; None: it
        cannot."""
        return self._memory.descriptor() if self._memory else None
