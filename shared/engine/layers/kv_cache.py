"""The KV pool as a tensor: [num_blocks, num_layers, 2, num_kv_heads, block_size, head_dim].

On a CPU it is a view of the bytes that the io process of the same worker also maps, so a block
is handed over without a copy in this process. On a GPU it is device memory: other workers map it
(`shared.engine.handover.shared_pool`), or blocks are carried to those bytes and back
(`shared.engine.handover.staging`).
"""

import torch

from kernels.elementwise import reference
from shared.kv.layout import KVLayout
from shared.kv.memory import KVMemory

TORCH_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def pool_shape(layout: KVLayout, num_blocks: int) -> tuple[int, ...]:
    """The shape above for `num_blocks` blocks of this layout."""
    return (
        num_blocks,
        layout.num_layers,
        layout.planes,
        layout.num_kv_heads,
        layout.block_size,
        layout.head_dim,
    )


def pool_of(memory: KVMemory) -> torch.Tensor:
    """The tensor over a host pool's bytes; writing it writes them."""
    flat = torch.frombuffer(memory.blocks, dtype=TORCH_DTYPES[memory.layout.dtype])
    num_elements = memory.num_blocks * memory.layout.num_layers * memory.layout.layer_elements
    return flat[:num_elements].view(pool_shape(memory.layout, memory.num_blocks))


def device_pool(layout: KVLayout, num_blocks: int, device: torch.device) -> torch.Tensor:
    """A pool in device memory, zero-filled: a stray NaN of an earlier owner would spread."""
    return torch.zeros(
        pool_shape(layout, num_blocks), dtype=TORCH_DTYPES[layout.dtype], device=device
    )


def copy_blocks(kv_pool: torch.Tensor, copies: torch.Tensor) -> None:
    """pool[dst] = pool[src] for each row (src, dst) of i64[C, 2]."""
    if copies.shape[0]:
        kv_pool.index_copy_(0, copies[:, 1], kv_pool.index_select(0, copies[:, 0]))


def store_kv(
    k: torch.Tensor,
    v: torch.Tensor,
    kv_pool: torch.Tensor,
    layer: int,
    slot_mapping: torch.Tensor,
) -> None:
    """Write k, v [T, num_kv_heads, head_dim] of one layer into slots i64[T]; -1 skips a row."""
    if kv_pool.device.type != "cpu":
        from kernels.elementwise.store_kv import store_kv as compiled  # noqa: PLC0415  (a CPU engine must
        # not pay for triton's import)

        compiled(k, v, kv_pool, layer, slot_mapping)
    else:
        reference.store_kv(k, v, kv_pool, layer, slot_mapping)
