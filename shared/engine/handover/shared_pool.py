"""A KV pool in GPU memory that other workers of this host map, so that nothing is staged.

Prefill's blocks are read where they lie, decode's are filled where they are used.
"""

import torch

from shared.engine.layers.kv_cache import TORCH_DTYPES, pool_shape
from shared.kv.layout import KVLayout
from shared.kv.probe import probe_bytes


class SharedPool:
    """Zero-filled, on the current device; a probe follows its last block, which takes one more
    granule of the driver's at most."""

    def __init__(self, layout: KVLayout, num_blocks: int) -> None:
        """`layout`: of this rank's pool."""
        # A CPU engine imports this module and has no driver to call.
        from kernels.sharing.shared_memory import SharedMemory  # noqa: PLC0415

        num_bytes = num_blocks * layout.block_bytes
        self._end, self._num_probe_bytes = num_bytes, probe_bytes(num_bytes)
        self._memory = SharedMemory(num_bytes + self._num_probe_bytes)
        self.tensor = self._memory.tensor(
            pool_shape(layout, num_blocks), TORCH_DTYPES[layout.dtype]
        )
        """[num_blocks, ...], as `shared.engine.layers.kv_cache` has it"""

    def write_probe(self, probe: memoryview) -> None:
        """Its first bytes, as many as there is room for."""
        room = self._memory.tensor((self._end + self._num_probe_bytes,), torch.uint8)[self._end :]
        room.copy_(torch.frombuffer(probe, dtype=torch.uint8)[: len(room)])

    def descriptor(self) -> int:
        """A new descriptor that the pool can be mapped by; the caller closes it."""
        return self._memory.descriptor()
