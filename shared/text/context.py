"""What a model's context has room for: prompts, and how many tokens may follow them."""

from dataclasses import dataclass
from typing import Protocol

from shared.errors import RequestError
from shared.fields.readers import invalid
from shared.text.tokenizer import TextTokenizer

COUNTED_CONTEXTS = 64
"""contexts that a text may fill which is only counted, or shortened: people ask how far one is
over, and for the end of a long one"""

ANSWER_SHARE = 8
"""the part of a context that a shortened prompt leaves to an answer of which nobody says how long
it may be: an eighth"""


class Lengths(Protocol):
    """What a request says of its prompt's length and its answer's, in tokens."""

    @property
    def keep_tokens(self) -> int:
        """Of the prompt, its last ones; -1: as many as fit next to the answer; 0: it must fit."""

    @property
    def min_tokens(self) -> int: ...
    @property
    def max_tokens(self) -> int | None:
        """Of the answer; None: as many as fit."""


@dataclass(frozen=True)
class Context:
    """`length` positions; all refusals are RequestErrors that name `param`."""

    length: int
    own_length: int
    """the model's; more than `length` where the workers' pools hold no more"""
    tokenizer: TextTokenizer

    def check_text(self, content: str, param: str, contexts: int = 1) -> None:
        """Refuses a text that is longer than `contexts` contexts in any encoding, before time is
        spent on encoding it."""
        shortest = self.tokenizer.shortest_encoding(len(content.encode()))
        if shortest > contexts * self.length:
            raise self.too_long(f"at least {shortest}", param)

    def check_prompt(self, content: str, wanted: Lengths, param: str) -> None:
        """The same; what will be shortened may be longer."""
        self.check_text(content, param, COUNTED_CONTEXTS if wanted.keep_tokens else 1)

    def shortened(self, wanted: Lengths, ids: list[int]) -> list[int]:
        """The end of the prompt, as long as `truncate_prompt_tokens` says. With -1 that is what the
        context has next to the answer: `max_tokens`, of which half the context counts at most (more
        is clamped as usual), or where nobody says a share of the context."""
        keep = wanted.keep_tokens
        if keep < 0:
            asked = wanted.max_tokens
            answer = self.length // ANSWER_SHARE if asked is None else min(asked, self.length // 2)
            keep = max(1, self.length - max(1, wanted.min_tokens, answer))
        return ids[-keep:] if keep else ids

    def max_tokens(self, wanted: Lengths, num_prompt_tokens: int, param: str) -> int:
        """That may follow the prompt."""
        if num_prompt_tokens == 0:
            raise invalid(param, "at least one token long")
        left = self.length - num_prompt_tokens
        most = left if wanted.max_tokens is None else wanted.max_tokens
        if left < 1:
            raise self.too_long(f"{num_prompt_tokens}", param, " and needs 1 more to generate")
        most = min(most, left)
        if wanted.min_tokens > most:
            raise invalid("min_tokens", f"at most {most}, the tokens that can be generated")
        return most

    def too_long(self, num_tokens: str, param: str, more: str = "") -> RequestError:
        """Begins with OpenAI's own sentence, which clients look for."""
        why = (
            ""
            if self.length == self.own_length
            else (
                " The workers' KV pools hold no more; the model's own context is "
                f"{self.own_length}."
            )
        )
        return RequestError(
            f"This model's maximum context length is {self.length} tokens. However, your {param} "
            f"resulted in {num_tokens} tokens{more}. Shorten it.{why}",
            code="context_length_exceeded",
            param=param,
        )
