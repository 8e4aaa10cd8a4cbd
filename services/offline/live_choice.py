"""One choice of a prompt while the engine computes it."""

from collections.abc import Iterator
from functools import cached_property

from services.offline.answer import Choice, TokenLogprob
from services.offline.prompt import Prompt
from shared.message_parts.prompt_logprobs import PromptLogprobs, floats, whole_numbers
from shared.protocol import Attempt, FinishReason, TokenLogprobs, TokenRun
from shared.text.answer_text import AnswerText, TokenEntry
from shared.text.tokenizer import TextTokenizer


class LiveChoice:
    """Fed with the engine's runs until it has ended."""

    def __init__(
        self, prompt: Prompt, index: int, attempt: Attempt, tokenizer: TextTokenizer
    ) -> None:
        """`index`: of the choice."""
        self.prompt = prompt
        self.index = index
        self.attempt = attempt
        self.sampling = prompt.samplings[index]
        self.num_cached_tokens = 0
        self.scored: list[PromptLogprobs] = []
        """of the prompt, where they are wanted and this is its first choice"""
        self.error: Exception | None = None
        """why there will be no answer"""
        self._tokenizer = tokenizer
        self._answer = AnswerText(
            tokenizer, self.sampling, prompt.stops, prompt.visible_ids, with_ids=True
        )
        self._unread_ids: list[int] = []
        """tokens that nobody needs the text of yet: many at once cost little more than one"""
        self._unread_logprobs: list[TokenLogprobs] = []
        """of the same tokens, where they were asked for"""
        self._texts: list[str] = []
        self._num_taken = 0
        """pieces of text that a reader has"""

    def push(self, run: TokenRun) -> None:
        """The tokens that came next."""
        self._unread_ids += run.token_ids
        self._unread_logprobs += run.logprobs
        if self.prompt.stops or run.finish_reason is not None:
            self._read(run.finish_reason)

    @property
    def ended(self) -> bool:
        """Nothing will be pushed that matters; the engine may not know yet."""
        return self._answer.finish_reason is not None or self.error is not None

    @property
    def stopped(self) -> bool:
        """A stop string ended it, of which the engine knows nothing."""
        return self._answer.stopped

    @property
    def num_tokens(self) -> int:
        return self._answer.num_tokens + len(self._unread_ids)

    def take_text(self) -> str:
        """What came since the last call."""
        self._read()
        new, self._num_taken = self._texts[self._num_taken :], len(self._texts)
        return "".join(new)

    @cached_property
    def choice(self) -> Choice:
        """It has ended, without an error."""
        ending = self._answer.ending
        assert ending.reason != "tool_calls"
        with_logprobs = self.sampling.logprobs >= 0
        entries = self._answer.take_entries()
        return Choice(
            index=self.index,
            text="".join(self._texts),
            token_ids=tuple(self._answer.take_ids() or ()),
            finish_reason=ending.reason,
            stop_reason=ending.stop_reason,
            logprobs=tuple(map(self._logprob, entries)) if with_logprobs else None,
        )

    @cached_property
    def prompt_logprobs(self) -> tuple[TokenLogprob | None, ...] | None:
        """Of the prompt, in order, nothing of its first token; None where nobody asked."""
        if self.prompt.prompt_logprobs < 0:
            return None
        ids = self.prompt.token_ids
        return (
            None,
            *(
                self._named(token_id, found)
                for piece in self.scored
                for token_id, found in zip(ids[piece.first :], logprobs_of(piece), strict=False)
            ),
        )

    def _read(self, reason: FinishReason | None = None) -> None:
        """The text of the tokens that came; `reason`: why the last of them is the answer's last."""
        if not self._unread_ids:
            return
        ids, logprobs = tuple(self._unread_ids), tuple(self._unread_logprobs)
        self._unread_ids.clear()
        self._unread_logprobs.clear()
        if text := self._answer.push(TokenRun(*self.attempt, 0, ids, logprobs, reason)):
            self._texts.append(text)

    def _logprob(self, entry: TokenEntry) -> TokenLogprob:
        assert entry.logprobs is not None
        return self._named(entry.token_id, entry.logprobs)

    def _named(self, token_id: int, found: TokenLogprobs) -> TokenLogprob:
        top = zip(found.top_ids, found.top_logprobs, strict=True)
        return TokenLogprob(
            token_id,
            self._tokenizer.token_text(token_id),
            found.logprob,
            tuple(TokenLogprob(each, self._tokenizer.token_text(each), at) for each, at in top),
        )


def logprobs_of(piece: PromptLogprobs) -> Iterator[TokenLogprobs]:
    """Of each of its tokens."""
    ids, tops = whole_numbers(piece.top_ids), floats(piece.top_logprobs)
    num_top = len(ids) // piece.num_tokens
    for at, logprob in enumerate(floats(piece.logprobs)):
        top = slice(num_top * at, num_top * (at + 1))
        yield TokenLogprobs(logprob, tuple(ids[top]), tuple(tops[top]))
