"""Torch reference of kernels/peer/reduce.py."""

from collections.abc import Sequence

import torch


def peer_reduce(
    messages: Sequence[torch.Tensor], output: torch.Tensor, residual: torch.Tensor | None = None
) -> None:
    """Write the sum of all ranks' messages, added from rank 0 on in fp32, (+ `residual`) into
    `output`, rounded once."""
    total = torch.zeros_like(messages[0], dtype=torch.float32)
    for message in messages:
        total += message.float()
    if residual is not None:
        total += residual.float()
    output.copy_(total)
