"""Measures a GPU's memory: what the weights hold and what the largest step takes on top."""

from collections.abc import Callable

import torch

from shared.engine.loading.pool_size import MemoryProfile
from shared.engine.loading.room_advice import NO_MEMORY
from shared.errors import SettingsError


def measure(
    device: torch.device, utilization: float, largest_step: Callable[[], None]
) -> MemoryProfile:
    """Run `largest_step` once and note what it takes; call it when only the weights are there.
    SettingsError where the GPU has no memory for it."""
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    weights_bytes = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    try:
        largest_step()
    except torch.OutOfMemoryError:
        raise SettingsError(f"the largest step {NO_MEMORY}") from None
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
