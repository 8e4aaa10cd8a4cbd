"""How much of a GPU's memory is left for KV blocks, and where the rest goes.

    total x utilization = others + weights + activations + graphs + KV pool

`others` is what is in use besides torch's tensors: the driver's context, communication, other
processes. Activations are measured: the largest step the settings allow is run once.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from shared.engine.block_pool import MIN_BLOCKS
from shared.errors import SettingsError

GRAPH_SHARE = 0.005
"""of the GPU's memory, for captured graphs: measured 0.3 GB for 40 of them on an H200"""
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

    def num_blocks(self, block_bytes: int) -> int:
        """KV blocks that fit. SettingsError, which says what would help, if too few do."""
        num_blocks = self.kv_bytes // block_bytes
        if num_blocks < MIN_BLOCKS:
            raise SettingsError(
                f"the model leaves no room for {MIN_BLOCKS} KV blocks of {block_bytes} bytes. GiB: "
                f"{self}. A higher --gpu-memory-utilization, a lower --max-num-batched-tokens or "
                "--max-num-seqs, or more GPUs (--tp) make room"
            )
        return num_blocks


def measure(
    device: torch.device, utilization: float, largest_step: Callable[[], None]
) -> MemoryProfile:
    """Run `largest_step` once and note what it takes; call it when only the weights are there."""
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    weights_bytes = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    largest_step()
    torch.cuda.synchronize(device)
    peak_bytes = torch.cuda.max_memory_allocated(device)
    torch.cuda.empty_cache()
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    others_bytes = total_bytes - free_bytes - torch.cuda.memory_reserved(device)
    return MemoryProfile(
        total_bytes=total_bytes,
        utilization=utilization,
        others_bytes=max(0, others_bytes),
        weights_bytes=weights_bytes,
        activations_bytes=peak_bytes - weights_bytes,
    )
