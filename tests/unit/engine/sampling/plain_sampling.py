"""What a request does to its logits, said slowly: loops over lists, one token at a time.

Arithmetic is that of numpy's f32 scalars, so a right implementation agrees bit for bit.
"""

import math
from dataclasses import replace

import numpy as np
import torch

from shared.engine.sampling.logit_bias import bias_for
from shared.engine.sampling.sample_row import SampleRow
from shared.engine.sampling.token_counts import counts_for
from shared.protocol import Sampling


def plain_logits(
    logits: torch.Tensor, sampling: Sampling, token_ids: tuple[int, ...], num_prompt_tokens: int
) -> torch.Tensor:
    """f32[V] with bias and penalties, of a sequence of these tokens."""
    values = [np.float32(value) for value in logits.tolist()]
    for token_id, bias in sampling.logit_bias:
        values[token_id] += np.float32(bias)
    for token_id in set(token_ids):
        if values[token_id] > 0:
            values[token_id] /= np.float32(sampling.repetition_penalty)
        else:
            values[token_id] *= np.float32(sampling.repetition_penalty)
    output = token_ids[num_prompt_tokens:]
    for token_id in set(output):
        count = np.float32(output.count(token_id))
        values[token_id] -= np.float32(sampling.frequency_penalty) * count
        values[token_id] -= np.float32(sampling.presence_penalty)
    return torch.tensor(np.array(values, dtype=np.float32))


def without_penalties(sampling: Sampling) -> Sampling:
    """What is left to do once `plain_logits` did its part."""
    return replace(
        sampling,
        logit_bias=(),
        repetition_penalty=1.0,
        frequency_penalty=0.0,
        presence_penalty=0.0,
    )


def plain_candidates(logits: list[float], sampling: Sampling) -> set[int]:
    """Tokens that temperature, top-k, top-p and min-p leave to draw from."""
    shares = [math.exp((x - max(logits)) / sampling.temperature) for x in logits]
    order = sorted(range(len(logits)), key=lambda token_id: (-shares[token_id], token_id))
    kept = order[: sampling.top_k or None]
    mass, total = 0.0, sum(shares[token_id] for token_id in kept)
    candidates = set()
    for token_id in kept:
        if mass < sampling.top_p * total and shares[token_id] >= sampling.min_p:
            candidates.add(token_id)
        mass += shares[token_id]
    return candidates


def row_of(sampling: Sampling, token_ids: tuple[int, ...], num_prompt_tokens: int) -> SampleRow:
    """The row of a sequence of these tokens, its state built afresh."""
    return SampleRow(
        sampling,
        len(token_ids),
        len(token_ids) - num_prompt_tokens,
        bias_for(sampling),
        counts_for(sampling, token_ids, num_prompt_tokens),
    )
