"""A step from its start until it is booked: what was decided, and the tokens on their way."""

from collections.abc import Sequence as Run
from dataclasses import dataclass

import torch

from shared.engine.batch import ScheduledSequence
from shared.engine.grammars import allowed_tokens
from shared.engine.sample_row import SampleRow
from shared.engine.sampled_tokens import SampledTokens
from shared.engine.scheduler import ScheduledBatch
from shared.engine.sequence import Sequence


@dataclass(frozen=True)
class StepInFlight:
    """A step that was started and not booked yet."""

    scheduled: ScheduledBatch
    tokens: SampledTokens
    rows: dict[Sequence, int]
    """which of the tokens is whose"""
    mark: torch.cuda.Event | None
    """when its K and V are in the pool, where somebody reads them from there"""


def sample_rows(items: Run[ScheduledSequence]) -> list[SampleRow]:
    return [
        SampleRow(
            sequence.spec.sampling,
            sequence.num_tokens_ahead,
            sequence.num_tokens_ahead - sequence.spec.num_prompt_tokens,
            sequence.bias,
            sequence.counts,
            allowed_tokens(sequence),
        )
        for sequence, _, _, samples, _ in items
        if samples
    ]


def needs_its_tokens(items: Run[ScheduledSequence]) -> bool:
    """The next step cannot be decided before these tokens are known."""
    return any(item.sequence.grammar is not None for item in items)
