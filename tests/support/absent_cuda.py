"""What shared.mover.device_copies asks torch for, on a GPU whose memory is the host's."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch


class Nothing:
    """A stream or an event on which all work is done."""

    cuda_stream = 7

    def record(self) -> None:
        return None

    def synchronize(self) -> None:
        return None


def absent_torch() -> SimpleNamespace:
    """To stand where the module has torch."""
    runtime = SimpleNamespace(cudaHostRegister=lambda *_: 0, cudaHostUnregister=lambda *_: 0)
    cuda = SimpleNamespace(
        Stream=Nothing,
        Event=lambda **_: Nothing(),
        device=nullcontext,
        stream=nullcontext,
        cudart=lambda: runtime,
    )
    types = {"uint8": torch.uint8, "int64": torch.int64}
    return SimpleNamespace(cuda=cuda, empty=_empty, tensor=torch.tensor, **types)


def _empty(*shape: int, pin_memory: bool = False, **options: Any) -> torch.Tensor:
    """Of the host, pinned or not."""
    return torch.empty(*shape, **options)
