"""Which rows of a step say how likely the tokens of a prompt were, and what comes of them."""

from collections.abc import Iterator
from collections.abc import Sequence as Run
from typing import NamedTuple

import numpy as np

from shared.engine.sampling.prompt_scores import ScoredRows
from shared.engine.sampling.score_plan import ScorePlan
from shared.engine.scheduling.batch import ScheduledSequence
from shared.engine.scheduling.sequence import Sequence, SequenceState
from shared.message_parts.prompt_logprobs import PromptLogprobs
from shared.protocol import Attempt


class ScoredSpan(NamedTuple):
    """Tokens [first, end) of one prompt, scored in this step."""

    sequence: Sequence
    row: int
    """of the step's rows, that before token `first`"""
    first: int
    end: int


def scored_spans(items: Run[ScheduledSequence]) -> list[ScoredSpan]:
    """In the order of the batch. What was told before a preemption is not scored again, nor is what
    is no token of the client's prompt."""
    spans, row = [], 0
    for sequence, start, num_tokens, _, prefill in items:
        if prefill and sequence.scores_prompt:
            first = max(start + 1, sequence.num_scored_tokens)
            end = min(start + num_tokens + 1, sequence.work.num_prompt_tokens)
            if first < end:
                spans.append(ScoredSpan(sequence, row + first - 1 - start, first, end))
        row += num_tokens
    return spans


def score_plan(spans: Run[ScoredSpan]) -> ScorePlan | None:
    """None for no spans."""
    if not spans:
        return None
    rows = [np.arange(span.row, span.row + span.end - span.first) for span in spans]
    ids = [span.sequence.token_ids[span.first : span.end] for span in spans]
    num_top = max(span.sequence.work.prompt_logprobs for span in spans)
    return ScorePlan(
        np.concatenate(rows).astype(np.int32), np.concatenate(ids).astype(np.int32), num_top
    )


def scored_pieces(
    spans: Run[ScoredSpan], scored: ScoredRows
) -> Iterator[tuple[Attempt, PromptLogprobs]]:
    """What to tell of a step that has ended; nothing of sequences that ended while it ran."""
    start = 0
    for sequence, _, first, end in spans:
        stop = start + end - first
        if sequence.state is not SequenceState.FINISHED:
            sequence.num_scored_tokens = end
            for piece in scored.pieces(start, stop, first, sequence.work.prompt_logprobs):
                yield sequence.attempt, piece
        start = stop
