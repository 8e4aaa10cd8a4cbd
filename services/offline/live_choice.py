"""One choice of a prompt while the engine computes it."""

from functools import cached_property
from itertools import chain

from services.offline.answer import Choice, TokenLogprob
from services.offline.prompt import Prompt
from shared.protocol import Attempt, TokenRun
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
        self.error: Exception | None = None
        """why there will be no answer"""
        self._tokenizer = tokenizer
        self._answer = AnswerText(
            tokenizer, self.sampling, prompt.stops, prompt.visible_ids, with_ids=True
        )
        self._unread: list[TokenRun] = []
        """runs that nobody needs the text of yet: many tokens at once cost little more than one"""
        self._texts: list[str] = []
        self._num_taken = 0
        """pieces of text that a reader has"""

    def push(self, run: TokenRun) -> None:
        """The tokens that came next."""
        self._unread.append(run)
        if self.prompt.stops or run.finish_reason is not None:
            self._read()

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
        return self._answer.num_tokens + len(self._unread)

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

    def _read(self) -> None:
        """The text of the runs that came."""
        if not self._unread:
            return
        run = self._unread[-1]._replace(
            token_ids=tuple(chain.from_iterable(each.token_ids for each in self._unread)),
            logprobs=tuple(chain.from_iterable(each.logprobs for each in self._unread)),
        )
        self._unread.clear()
        if text := self._answer.push(run):
            self._texts.append(text)

    def _logprob(self, entry: TokenEntry) -> TokenLogprob:
        found = entry.logprobs
        top = zip(found.top_ids, found.top_logprobs, strict=True)
        return TokenLogprob(
            entry.token_id,
            self._tokenizer.token_text(entry.token_id),
            found.logprob,
            tuple(TokenLogprob(each, self._tokenizer.token_text(each), at) for each, at in top),
        )
