"""What the ranks of one model tell each other: sums, logits, sampled ids."""

from typing import Protocol

import torch


class Ranks(Protocol):
    """The ranks of one model, seen from one of them.

    Every rank makes the same calls with equal shapes in the same order. Nothing here waits for the
    host or allocates beyond its result, except `least`, so calls may be captured in a graph. When
    another rank has ended a call raises RuntimeError, or never ends: its starter watches over it
    (shared/engine/rank_processes/followers.py).
    """

    rank: int
    size: int

    def reduce(self, partial: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """residual + the sum of all ranks' `partial`, which is lost. Added in the order of the
        ranks, in fp32, where that decides about bits."""

    def gather(self, logits: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
        """On rank 0 `output` [R, V], filled with all ranks' logits [R, width] side by side, as
        far as they fit; elsewhere `output` as it is."""

    def broadcast(self, ids: torch.Tensor) -> torch.Tensor:
        """On every rank the ids of rank 0, i64[R]; others give a tensor of that size."""

    def least(self, number: int) -> int:
        """The smallest of all ranks' numbers; waits for them."""

    def close(self) -> None:
        """Leave the group; no call may follow or be under way."""


class SingleRank:
    """A model on one device."""

    rank = 0
    size = 1

    def reduce(self, partial: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return residual + partial

    def gather(self, logits: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
        return output.copy_(logits[:, : output.shape[1]])

    def broadcast(self, ids: torch.Tensor) -> torch.Tensor:
        return ids

    def least(self, number: int) -> int:
        return number

    def close(self) -> None:
        return None
