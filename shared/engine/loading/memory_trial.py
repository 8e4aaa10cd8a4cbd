"""Measures a GPU's memory: what the weights hold and what the largest step takes on top."""

from collections.abc import Callable

import torch

from shared.engine.loading.pool_size import MemoryProfile


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
