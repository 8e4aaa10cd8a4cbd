"""A KV pool in GPU memory that other workers of this host map, so that nothing is staged.

Prefill's blocks are read where they lie, decode's are filled where they are used.
"""

from shared.engine.layers.kv_cache import TORCH_DTYPES, pool_shape
from shared.kv.layout import KVLayout


class SharedPool:
    """Zero-filled, on the current device."""

    def __init__(self, layout: KVLayout, num_blocks: int) -> None:
        # A CPU engine imports this module and has no driver to call.
        from kernels.sharing.shared_memory import SharedMemory  # noqa: PLC0415

        self._memory = SharedMemory(num_blocks * layout.block_bytes)
        self.tensor = self._memory.tensor(
            pool_shape(layout, num_blocks), TORCH_DTYPES[layout.dtype]
        )
        """[num_blocks, ...], as `shared.engine.layers.kv_cache` has it"""

    def descriptor(self) -> int:
        """A new descriptor that the pool can be mapped by; the caller closes it."""
        return self._memory.descriptor()
