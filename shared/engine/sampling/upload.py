"""Small arrays of the host on their way to a device, without waiting for it."""

from collections.abc import Sequence

import numpy as np
import torch


def upload(numbers: "Sequence[int] | np.ndarray", device: torch.device) -> torch.Tensor:
    """A tensor of them on `device`, i64 unless they are an array of another type."""
    array = np.array(numbers, dtype=getattr(numbers, "dtype", np.int64))
    tensor = torch.from_numpy(array)
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
