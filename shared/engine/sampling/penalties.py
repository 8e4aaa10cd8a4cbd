"""What a request does to its logits before a token is chosen: logit_bias, then the penalties.

    l[i] += bias[i]                        for each token that has a bias
    l[i] /= repetition, if l[i] > 0        for each token of prompt or output
    l[i] *= repetition, otherwise
    l[i] -= frequency * n[i]               for each token that the output has n[i] > 0 times
    l[i] -= presence

One gather, a few element-wise operations and one scatter over the tokens concerned, whichever
rows they belong to. No token occurs twice in a row, so the result does not depend on an order,
nor on what else is in the batch. Every operation is a single rounding in f32.
"""

from collections.abc import Sequence

import numpy as np
import torch

from shared.engine.sampling.sample_row import SampleRow
from shared.protocol import Sampling


def add_bias_(logits: torch.Tensor, rows: Sequence[SampleRow]) -> None:
    """Add each row's logit_bias to its logits, f32[R, V], in place."""
    vocab_size = logits.shape[-1]
    cells, added = [], []
    for index, row in enumerate(rows):
        if row.bias is not None:
            token_ids = np.frombuffer(row.bias.token_ids, np.int64)
            known = (token_ids >= 0) & (token_ids < vocab_size)
            cells.append(token_ids[known] + index * vocab_size)
            added.append(np.frombuffer(row.bias.added, np.float32)[known])
    if not cells:
        return
    at = torch.from_numpy(np.concatenate(cells)).to(logits.device)
    flat = logits.view(-1)
    flat[at] = flat[at] + torch.from_numpy(np.concatenate(added)).to(logits.device)


def penalise_(logits: torch.Tensor, rows: Sequence[SampleRow]) -> None:
    """Apply each row's penalties to its logits, f32[R, V], in place."""
    device, vocab_size = logits.device, logits.shape[-1]
    cells, num_in_output, penalties = [], [], []
    for index, row in enumerate(rows):
        if row.counts is not None and row.counts.token_ids:
            cells.append(np.frombuffer(row.counts.token_ids, np.int64) + index * vocab_size)
            num_in_output.append(np.frombuffer(row.counts.num_in_output, np.int32))
            penalties.append(_penalties(row.sampling))
    if not cells:
        return
    lengths = [len(cells_of_row) for cells_of_row in cells]
    of_cells = np.repeat(np.array(penalties, dtype=np.float32).T, lengths, axis=1)
    repetition, frequency, presence = torch.from_numpy(of_cells).to(device)
    counts = torch.from_numpy(np.concatenate(num_in_output)).to(device)
    at = torch.from_numpy(np.concatenate(cells)).to(device)
    flat = logits.view(-1)
    values = flat[at]
    values = torch.where(values > 0, values / repetition, values * repetition)
    values = values - frequency * counts
    flat[at] = values - presence * (counts > 0)


def _penalties(sampling: Sampling) -> tuple[float, float, float]:
    return sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty
