"""How likely each token of a prompt was behind those before it, for prompts whose client asks.

The logits of all rows of a step at once would take 4 GB for 8,192 rows of 128k tokens, so they are
made, reduced to a few numbers a row and dropped again, a few rows at a time.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch

from shared.engine.sampling.raw_logprobs import most_probable
from shared.engine.sampling.score_plan import ScorePlan
from shared.engine.sampling.upload import upload
from shared.message_parts.prompt_logprobs import MAX_PIECE_TOKENS, PromptLogprobs


class ScoredRows(NamedTuple):
    """What comes of N rows, K alternatives each."""

    logprobs: torch.Tensor
    """f32[N], of the tokens that follow"""
    ranks: torch.Tensor
    """i32[N], how many tokens are as likely at least"""
    top_ids: torch.Tensor
    """i32[N, K]"""
    top_logprobs: torch.Tensor
    """f32[N, K]"""

    def on_host(self) -> "ScoredRows":
        """Copies, not there before what is on the current stream has ended, in pinned memory; the
        same where this is on the host."""
        if self.logprobs.device.type == "cpu":
            return self
        pinned = [torch.empty(one.shape, dtype=one.dtype, pin_memory=True) for one in self]
        return ScoredRows(
            *(host.copy_(one, non_blocking=True) for host, one in zip(pinned, self, strict=True))
        )

    def pieces(self, start: int, end: int, first: int, num_top: int) -> Iterator[PromptLogprobs]:
        """Rows [start, end), which are of one prompt, from its token `first` on."""
        for begin in range(start, end, MAX_PIECE_TOKENS):
            rows = slice(begin, min(end, begin + MAX_PIECE_TOKENS))
            yield PromptLogprobs(
                first + begin - start,
                _packed(self.logprobs[rows], "<f4"),
                _packed(self.ranks[rows], "<u4"),
                _packed(self.top_ids[rows, :num_top], "<u4"),
                _packed(self.top_logprobs[rows, :num_top], "<f4"),
            )


class PromptScorer:
    """Scores rows of one model's steps. The host waits for nothing."""

    def __init__(
        self, logits_of: Callable[[torch.Tensor], torch.Tensor], rows_at_once: int
    ) -> None:
        """`logits_of`: hidden states [rows_at_once, hidden_size] -> logits [rows_at_once, V], of a
        float type; it is always asked for as many."""
        self._logits_of = logits_of
        self._rows_at_once = rows_at_once
        self._scored: ScoredRows | None = None

    def score(self, plan: ScorePlan, hidden: torch.Tensor) -> None:
        """`hidden`: of all rows of a step. What is missing to whole turns repeats row 0."""
        num_rows, at_once = len(plan.rows), self._rows_at_once
        missing = -num_rows % at_once
        rows, token_ids = (
            upload(np.pad(numbers.astype(np.int64), (0, missing)), hidden.device)
            for numbers in (plan.rows, plan.token_ids)
        )
        parts = []
        for turn, ids in zip(rows.split(at_once), token_ids.split(at_once), strict=True):
            logits = self._logits_of(hidden.index_select(0, turn))
            parts.append(_reduced(logits, ids[:, None], plan.num_top))
            del logits
        self._scored = ScoredRows(*(torch.cat(one)[:num_rows] for one in zip(*parts, strict=True)))

    def take(self) -> ScoredRows:
        """Of the last step with rows to score; where its logits were."""
        scored, self._scored = self._scored, None
        assert scored is not None
        return scored


def _reduced(logits: torch.Tensor, token_ids: torch.Tensor, num_top: int) -> ScoredRows:
    """Of a few rows. `token_ids`: i64[R, 1]."""
    table = logits.float().log_softmax(dim=-1)
    del logits
    chosen = table.gather(-1, token_ids)
    ranks = (table >= chosen).sum(dim=-1, dtype=torch.int32)
    top_ids = most_probable(table, min(num_top, table.shape[-1]))
    return ScoredRows(chosen[:, 0], ranks, top_ids.int(), table.gather(-1, top_ids))


def _packed(numbers: torch.Tensor, kind: str) -> bytes:
    return bytes(numbers.contiguous().numpy().astype(kind, copy=False).tobytes())
