"""The training loop: batches of like length, AdamW, cosine schedule, bf16 on a GPU."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from shared.demo_model.recipe.documents import TokenArrays
from shared.demo_model.recipe.network import Network

BUCKETS = (48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096)
"""row lengths; a document joins the shortest that holds it"""


@dataclass(frozen=True)
class Schedule:
    """How long and how fast to learn."""

    num_steps: int
    limit_s: float
    """wall time after which the loop ends; the learning rate has then come down as well"""
    tokens_per_batch: int
    peak_rate: float
    num_warmup_steps: int = 200
    weight_decay: float = 0.05
    report_every: int = 250

    def rate(self, step: int, elapsed_s: float) -> float:
        """Learning rate: linear warm-up, then a cosine down to 2 % of the peak."""
        if step < self.num_warmup_steps:
            return self.peak_rate * (step + 1) / self.num_warmup_steps
        done = min(1.0, max(step / self.num_steps, elapsed_s / self.limit_s))
        return self.peak_rate * (0.02 + 0.98 * (1 + math.cos(math.pi * done)) / 2)


@dataclass(frozen=True)
class Progress:
    """What the loop reports now and then."""

    step: int
    loss: float
    tokens_per_s: float
    elapsed_s: float


class Batches:
    """Endless batches [rows, length + 1] of whole documents, padded to their bucket's length."""

    def __init__(
        self, arrays: TokenArrays, tokens_per_batch: int, device: torch.device, seed: int
    ) -> None:
        self.tokens_per_batch = tokens_per_batch
        self.token_ids = torch.from_numpy(arrays.token_ids.astype("int32")).to(device)
        self.trained = torch.from_numpy(arrays.trained).to(device)
        starts = torch.from_numpy(arrays.starts)
        lengths = starts.diff()
        self.starts, self.lengths = starts[:-1].to(device), lengths.to(device)
        bucket_of = torch.bucketize(lengths - 1, torch.tensor(BUCKETS))
        self.members = [
            (length, torch.nonzero(bucket_of == index).flatten())
            for index, length in enumerate(BUCKETS)
        ]
        self.random = torch.Generator().manual_seed(seed)

    def _epoch(self) -> list[tuple[int, Tensor]]:
        batches: list[tuple[int, Tensor]] = []
        for length, members in self.members:
            if not len(members):
                continue
            order = members[torch.randperm(len(members), generator=self.random)]
            num_rows = max(1, self.tokens_per_batch // length)
            batches += [(length, rows) for rows in torch.split(order, num_rows)]
        shuffled = torch.randperm(len(batches), generator=self.random)
        return [batches[index] for index in shuffled.tolist()]

    def _gather(self, length: int, rows: Tensor) -> tuple[Tensor, Tensor]:
        rows = rows.to(self.starts.device)
        offsets = torch.arange(length + 1, device=rows.device)
        inside = offsets < self.lengths[rows].unsqueeze(1)
        index = (self.starts[rows].unsqueeze(1) + offsets).clamp(max=len(self.token_ids) - 1)
        token_ids = torch.where(inside, self.token_ids[index], 0)
        return token_ids.long(), self.trained[index] & inside

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            for length, rows in self._epoch():
                yield self._gather(length, rows)


def _optimizer(network: Network, schedule: Schedule, *, fused: bool) -> torch.optim.Optimizer:
    matrices = [p for p in network.parameters() if p.dim() > 1]
    scales = [p for p in network.parameters() if p.dim() <= 1]
    groups: list[dict[str, Any]] = [
        {"params": matrices, "weight_decay": schedule.weight_decay},
        {"params": scales, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=schedule.peak_rate, betas=(0.9, 0.97), fused=fused)


def batch_loss(network: Network, token_ids: Tensor, trained: Tensor) -> Tensor:
    """Mean cross-entropy of the next token where `trained` marks it; both [rows, length + 1]."""
    hidden = network.hidden_states(token_ids[:, :-1])
    wanted = trained[:, 1:]
    logits = network.logits(hidden[wanted])
    return functional.cross_entropy(logits.float(), token_ids[:, 1:][wanted])


def train(
    network: Network,
    arrays: TokenArrays,
    schedule: Schedule,
    report: Callable[[Progress], None],
    seed: int,
) -> None:
    """Trains in place until the steps or the time are used up."""
    device = next(network.parameters()).device
    on_gpu = device.type == "cuda"
    optimizer = _optimizer(network, schedule, fused=on_gpu)
    mixed = torch.autocast("cuda", torch.bfloat16) if on_gpu else nullcontext()
    batches = iter(Batches(arrays, schedule.tokens_per_batch, device, seed))
    start, num_tokens, losses = time.monotonic(), 0, torch.zeros((), device=device)
    for step in range(schedule.num_steps):
        elapsed_s = time.monotonic() - start
        if elapsed_s > schedule.limit_s:
            break
        for group in optimizer.param_groups:
            group["lr"] = schedule.rate(step, elapsed_s)
        token_ids, trained = next(batches)
        with mixed:
            loss = batch_loss(network, token_ids, trained)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses += loss.detach()
        num_tokens += token_ids.numel()
        if (step + 1) % schedule.report_every == 0:
            mean_loss = float(losses) / schedule.report_every
            losses.zero_()
            elapsed_s = time.monotonic() - start
            report(Progress(step + 1, mean_loss, num_tokens / elapsed_s, elapsed_s))
