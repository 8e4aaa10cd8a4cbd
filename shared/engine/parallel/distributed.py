"""Ranks over torch.distributed: gloo between CPU processes, NCCL between GPUs.

The ranks find each other through a file; what listens does so on the loopback device. On a CPU
partial sums are exchanged and added in the order of the ranks, since the order of gloo's own
reduction depends on where in the batch a row stands.
"""

import os
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

PRIVATE = {
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
}
"""environment of every rank: no port other hosts reach, no NVLink multicast"""
TIMEOUT = timedelta(minutes=10)
"""a rank may load its weights this much longer than another"""

ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
"""torch 2.13 renamed it"""


class DistributedRanks:
    """See shared.engine.parallel.ranks.Ranks."""

    def __init__(self, rank: int, size: int, device: torch.device) -> None:
        self.rank = rank
        self.size = size
        self._device = device

    @classmethod
    def join(cls, rank: int, size: int, device: torch.device, meeting: Path) -> "DistributedRanks":
        """Wait for all ranks. `meeting` is an empty file of theirs alone. One group per process."""
        os.environ.update(PRIVATE)
        on_gpu = device.type == "cuda"
        dist.init_process_group(
            "nccl" if on_gpu else "gloo",
            init_method=f"file://{meeting}",
            rank=rank,
            world_size=size,
            timeout=TIMEOUT,
            device_id=device if on_gpu else None,
        )
        return cls(rank, size, device)

    def reduce(self, partial: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        if self._device.type == "cuda":
            dist.all_reduce(partial)
            return residual + partial
        total, *others = self.exchange(partial)
        for other in others:
            total += other
        return total.add_(residual)

    def gather(self, logits: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
        parts = self.exchange(logits)
        if self.rank != 0:
            return output
        width = logits.shape[1]
        last = output.shape[1] - width * (self.size - 1)
        parts = (*parts[:-1], parts[-1][:, :last])
        return torch.cat(parts, dim=1, out=output)

    def broadcast(self, ids: torch.Tensor) -> torch.Tensor:
        dist.broadcast(ids, src=0)
        return ids

    def least(self, number: int) -> int:
        own = torch.tensor([number], device=self._device)
        return min(int(other) for other in self.exchange(own))

    def close(self) -> None:
        dist.destroy_process_group()

    def exchange(self, tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """All ranks' tensors of this shape, in the order of the ranks."""
        everything = tensor.new_empty((self.size, *tensor.shape))
        ALL_GATHER(everything.view(-1), tensor.reshape(-1))
        return everything.unbind()
