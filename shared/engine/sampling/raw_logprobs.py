"""Log-probabilities of raw logits: computed where the logits are, made into lists on the host."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from shared.engine.sampling.sample_row import SampleRow
from shared.engine.sampling.upload import upload
from shared.protocol import TokenLogprobs

ID_BITS = 22
MAX_ID = 2**ID_BITS - 1
"""largest token id; a key and an id fit into one int64"""


class LogprobTensors(NamedTuple):
    """Of the N rows that ask, K the most that one of them asks for."""

    asking: tuple[int, ...]
    """their indexes in the batch"""
    counts: tuple[int, ...]
    """how many of the most likely each wants"""
    chosen: torch.Tensor
    """f32[N], of the chosen tokens"""
    top_ids: torch.Tensor
    """i64[N, K]"""
    top_values: torch.Tensor
    """f32[N, K]"""

    def on_host(self) -> "LogprobTensors":
        """Copies, not there yet, in pinned memory; the same where this is on the host."""
        if self.chosen.device.type == "cpu":
            return self
        copies = []
        for tensor in (self.chosen, self.top_ids, self.top_values):
            pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            copies.append(pinned.copy_(tensor, non_blocking=True))
        return LogprobTensors(self.asking, self.counts, *copies)

    def by_row(self) -> dict[int, TokenLogprobs]:
        """By index in the batch."""
        chosen, top_ids = self.chosen.tolist(), self.top_ids.tolist()
        top_values = self.top_values.tolist()
        return {
            index: TokenLogprobs(
                chosen[row], tuple(top_ids[row][:count]), tuple(top_values[row][:count])
            )
            for row, (index, count) in enumerate(zip(self.asking, self.counts, strict=True))
        }


def raw_logprobs(
    logits: torch.Tensor, token_ids: torch.Tensor, rows: Sequence[SampleRow]
) -> LogprobTensors | None:
    """Log-softmax of the raw logits [R, V] at the chosen ids i64[R] and at the likeliest ones, for
    rows that ask; None if none does. The host waits for nothing."""
    asking = tuple(index for index, row in enumerate(rows) if row.sampling.logprobs >= 0)
    if not asking:
        return None
    at = upload(asking, logits.device)
    table = logits[at].float().log_softmax(dim=-1)
    counts = tuple(min(rows[index].sampling.logprobs, logits.shape[-1]) for index in asking)
    top_ids = most_probable(table, max(counts))
    chosen = table.gather(-1, token_ids[at][:, None])[:, 0]
    return LogprobTensors(asking, counts, chosen, top_ids, table.gather(-1, top_ids))


def most_probable(logprobs: torch.Tensor, count: int) -> torch.Tensor:
    """Ids of the `count` largest of each row, i64[R, count], the lower id first among equals.

    The bits of non-negative floats order like the floats, so -logprob and id pack into one key.
    """
    ids = torch.arange(logprobs.shape[-1], device=logprobs.device)
    keys = (logprobs.abs().view(torch.int32).long() << ID_BITS) + ids
    return torch.bitwise_and(keys.topk(count, dim=-1, largest=False).values, MAX_ID)
