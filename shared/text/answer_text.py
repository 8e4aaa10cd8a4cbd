"""The text of one answer as its tokens arrive: detokenized, cut at stop strings, counted."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from shared.protocol import FinishReason, Sampling, TokenLogprobs
from shared.text.ending import Ending
from shared.text.stop_strings import StopStrings
from shared.text.tokenizer import TextTokenizer


@dataclass(frozen=True)
class TokenEntry:
    """One token with its log-probabilities and where its text starts in the answer."""

    token_id: int
    logprobs: TokenLogprobs | None
    """None: of the first token of a prompt, which the answer shows"""
    text_offset: int


class TokenPiece(Protocol):
    """Tokens that follow those of the piece before; `finish_reason` is on the last one only."""

    @property
    def token_ids(self) -> tuple[int, ...]: ...
    @property
    def logprobs(self) -> tuple[TokenLogprobs, ...]: ...
    @property
    def finish_reason(self) -> FinishReason | None: ...


class AnswerText:
    """Feed it pieces; it returns the text that may be shown, and knows when to stop."""

    def __init__(
        self,
        tokenizer: TextTokenizer,
        sampling: Sampling,
        stop: tuple[str, ...] = (),
        visible_ids: tuple[int, ...] = (),
        *,
        with_ids: bool = False,
    ) -> None:
        """`visible_ids`: special tokens that stay in the text; `with_ids`: whether the answer
        shows the tokens' ids too."""
        self._detokenizer = tokenizer.detokenizer(visible_ids)
        self._stops = StopStrings(stop) if stop else None
        self._sampling = sampling
        self._min_tokens = sampling.min_tokens
        self._ids: list[int] | None = [] if with_ids else None
        self._last_id = -1
        self._with_logprobs = sampling.logprobs >= 0
        self._by_token = self._with_logprobs or bool(stop)
        self._entries: list[TokenEntry] = []
        self._num_made_chars = 0
        self._num_shown_chars = 0
        self.num_tokens = 0
        """output tokens the answer is made of so far"""
        self.finish_reason: FinishReason | None = None
        self.stopped = False
        """a stop string ended the answer; the generation may still be running"""

    def push(self, piece: TokenPiece) -> str:
        """Text that these tokens allow to be shown."""
        if self._by_token:
            return self._push_by_token(piece)
        self.num_tokens += len(piece.token_ids)
        if self._ids is not None:
            self._ids += piece.token_ids
        text = self._detokenizer.push(piece.token_ids)
        if piece.finish_reason is not None:
            self._end(piece)
            text += self._detokenizer.end()
        return text

    @property
    def ending(self) -> Ending:
        """Why the answer ended."""
        assert self.finish_reason is not None
        return Ending(self.finish_reason, self.stop_reason, self.matched_stop)

    @property
    def matched_stop(self) -> int | str | None:
        """The stop string or the token, EOS too, that ended the answer, if one did."""
        if self.stopped and self._stops is not None:
            return self._stops.found
        sampling = self._sampling
        ending_ids = (*sampling.eos_token_ids, *sampling.stop_token_ids)
        stopped = self.finish_reason == "stop" and self._last_id in ending_ids
        return self._last_id if stopped else None

    @property
    def stop_reason(self) -> int | str | None:
        """The same without EOS."""
        matched, sampling = self.matched_stop, self._sampling
        is_eos = matched in sampling.eos_token_ids and not sampling.ignore_eos
        return None if is_eos else matched

    def take_ids(self) -> list[int] | None:
        """Tokens since the last call; None where nobody wants them."""
        if self._ids is None:
            return None
        ids, self._ids = self._ids, []
        return ids

    def take_entries(self) -> list[TokenEntry]:
        """Log-probabilities of tokens whose text was shown since the last call; in the end,
        of all tokens but those that only belong to a stop string."""
        if not self._with_logprobs:
            return []
        ended = self.finish_reason is not None and not self.stopped
        ready = [
            entry for entry in self._entries if ended or entry.text_offset < self._num_shown_chars
        ]
        self._entries = self._entries[len(ready) :]
        return ready

    def _push_by_token(self, piece: TokenPiece) -> str:
        shown = ""
        logprobs: Sequence[TokenLogprobs | None] = piece.logprobs or [None] * len(piece.token_ids)
        for token_id, entry in zip(piece.token_ids, logprobs, strict=True):
            if entry is not None and self._with_logprobs:
                self._entries.append(TokenEntry(token_id, entry, self._num_made_chars))
            self.num_tokens += 1
            if self._ids is not None:
                self._ids.append(token_id)
            shown += self._show(self._detokenizer.push((token_id,)))
            if self.stopped:
                return shown
        if piece.finish_reason is not None:
            shown += self._show(self._detokenizer.end())
            if not self.stopped:
                self._end(piece)
                shown += self._count(self._stops.end() if self._stops else "")
        return shown

    def _end(self, piece: TokenPiece) -> None:
        self.finish_reason = piece.finish_reason
        self._last_id = piece.token_ids[-1] if piece.token_ids else -1

    def _show(self, text: str) -> str:
        self._num_made_chars += len(text)
        if self._stops is None or self.num_tokens < self._min_tokens:
            return self._count(text)
        text, self.stopped = self._stops.push(text)
        if self.stopped:
            self.finish_reason = "stop"
        return self._count(text)

    def _count(self, text: str) -> str:
        self._num_shown_chars += len(text)
        return text
