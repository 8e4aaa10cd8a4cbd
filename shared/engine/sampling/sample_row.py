"""One row of logits to choose a token from, and what the choice may look at."""

from typing import NamedTuple

import torch

from shared.engine.sampling.logit_bias import LogitBias
from shared.engine.sampling.token_counts import TokenCounts
from shared.protocol import Sampling


class SampleRow(NamedTuple):
    """A sequence's part of one call of the sampler."""

    sampling: Sampling
    position: int
    """index the new token will have in its sequence"""
    num_output_tokens: int
    """output tokens before it, for min_tokens"""
    bias: LogitBias | None = None
    """of the sampling"""
    counts: TokenCounts | None = None
    """of the tokens so far, where the sampling has a penalty"""
    allowed: torch.Tensor | None = None
    """i32[words] on the host, bit i % 32 of word i // 32 set: token i may come next; None: any"""
