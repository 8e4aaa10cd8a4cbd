"""A KV pool in GPU memory that other workers of this host map, so that nothing is staged.

Prefill's blocks are read where they lie, decode's are filled where they are used.
"""

import torch

from shared.engine.layers.kv_cache import TORCH_DTYPES, pool_shape
from shared.kv.memory import KVMemory


class SharedPool:
    """Zero-filled, on the current device; the probe of the host-visible memory follows its last
    block, which takes one more granule of the driver's at most."""

    def __init__(self, memory: KVMemory) -> None:
        # A CPU engine imports this module and has no driver to call.
        from kernels.sharing.shared_memory import SharedMemory  # noqa: PLC0415

        layout, num_blocks = memory.layout, memory.num_blocks
        end = num_blocks * layout.block_bytes + len(memory.probe)
        self._memory = SharedMemory(end)
        probe = torch.frombuffer(memory.probe, dtype=torch.uint8)
        self._memory.tensor((end,), torch.uint8)[-len(probe) :].copy_(probe)
        self.tensor = self._memory.tensor(
            pool_shape(layout, num_blocks), TORCH_DTYPES[layout.dtype]
        )
        """[num_blocks, ...], as `shared.engine.layers.kv_cache` has it"""

    def descriptor(self) -> int:
        """A new descriptor that the pool can be mapped by; the caller closes it."""
        return self._memory.descriptor()
