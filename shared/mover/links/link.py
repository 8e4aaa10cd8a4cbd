"""What moves bytes between the movers of two workers, when both ends take part."""

from collections.abc import Callable
from typing import Literal, Protocol

import torch

End = Literal["gives", "takes"]
"""the source of blocks, and the worker that pulls them"""


class Link(Protocol):
    """One end. CopyError where it cannot be made, or does not work any more; it is of no use from
    then on. All but `card` and `abort` is called by one thread, the link's own."""

    def card(self) -> bytes:
        """What the other end needs to meet this one."""

    def meet(self, card: bytes) -> None:
        """Returns once both ends have met. `card`: the other end's."""

    def send(self, rows: torch.Tensor) -> None:
        """Contiguous bytes on the link's device. Returns once they have left the tensor."""

    def receive(self, rows: torch.Tensor) -> None:
        """As many bytes as the other end sends next."""

    def abort(self) -> None:
        """From any thread, safe to call twice. What is under way ends with CopyError: soon with
        NCCL, after MEET_S or MOVE_S at the latest with gloo."""

    def close(self) -> None:
        """The last call. Returns once nothing touches the bytes that were sent or received."""


MakeLink = Callable[[End, str, torch.device], Link]
"""which end, the address of this host by which the other end reaches it, where the bytes lie"""
