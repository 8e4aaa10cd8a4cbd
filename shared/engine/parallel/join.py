"""How a process becomes one of the ranks of a model."""

from pathlib import Path

import torch

from shared.engine.parallel.distributed import DistributedRanks
from shared.engine.parallel.ranks import Ranks


def join(rank: int, size: int, device: torch.device, meeting: Path) -> Ranks:
    """Wait for all ranks, by the fastest means that this kind of device has."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.zeros(1, device=device)  # the driver's calls need the context this makes
    ranks = DistributedRanks.join(rank, size, device, meeting)
    if device.type != "cuda":
        return ranks
    # A CPU engine must not pay for triton's import.
    from shared.engine.parallel.peer import with_peers  # noqa: PLC0415

    return with_peers(ranks, device)
