"""Everything an answer is made of, whatever shape it is written in."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from services.gateway.answer.choice import ChoiceText
from services.gateway.answer.choice_group import ChoiceGroup
from services.gateway.answer.echoed_group import prompt_tokens
from services.gateway.answer.parted_text import PartedText
from services.gateway.answer.prompt_tokens import PromptTokens
from services.gateway.answer.receipt_field import answer_receipt
from services.gateway.answer.shape import AnswerIdentity
from services.gateway.answer.usage import usage
from services.gateway.prompt.ignored_fields import told
from services.gateway.prompt.prepared import PreparedRequest
from shared.text.tokenizer import TextTokenizer

CLAMPED_HEADER = "x-baton-clamped"


@dataclass(frozen=True)
class Answer:
    """The choices of one request as they appear."""

    prepared: PreparedRequest
    group: ChoiceGroup
    texts: tuple[ChoiceText, ...]
    """of the choices, in order"""
    identity: AnswerIdentity
    tokenizer: TextTokenizer
    final_receipt: Callable[[str], Awaitable[dict[str, Any] | None]] | None = None
    """of an id; only where the client asked for a receipt"""

    @property
    def with_logprobs(self) -> bool:
        return self.prepared.sampling.logprobs >= 0

    def prompt_ids(self, index: int) -> tuple[int, ...] | None:
        """Tokens of the prompt of a choice, where they were asked for."""
        prepared = self.prepared
        wanted = prepared.return_token_ids
        return prepared.prompts[index // prepared.num_choices].token_ids if wanted else None

    def prompt_tokens(self, index: int) -> PromptTokens:
        """With their log-probabilities, where those were asked for; of a choice that has begun."""
        return prompt_tokens(self.group, self.prepared, self.tokenizer, index)

    @property
    def headers(self) -> dict[str, str]:
        """What was done to the request's fields."""
        clamped = self.prepared.clamped
        told_clamped = {CLAMPED_HEADER: clamped} if clamped else {}
        return {**told(self.prepared.ignored), **told_clamped}

    def usage(self) -> dict[str, Any]:
        """What the request cost so far: each prompt once, the tokens of all choices."""
        num_prompt_tokens = sum(len(prompt.token_ids) for prompt in self.prepared.prompts)
        num_tokens = sum(text.num_tokens for text in self.texts)
        num_cached_tokens = self.group.cached_tokens()
        return usage(num_prompt_tokens, num_tokens, num_cached_tokens, self._reasoning_tokens())

    def _reasoning_tokens(self) -> int | None:
        if self.prepared.form.reasoning == "none":
            return None
        return sum(text.num_reasoning_tokens for text in self.texts if isinstance(text, PartedText))

    async def close(self, index: int) -> None:
        """The choice's text has ended; so does its generation, if a stop string ended it."""
        text = self.texts[index]
        if text.stopped:
            await self.group.finish(index, "stop", text.num_tokens)
        self.group.close(index)

    async def receipt(self) -> dict[str, Any] | None:
        """Where the time went, if that was asked for; the choices have ended."""
        if self.final_receipt is None:
            return None
        body = await self.final_receipt(self.identity.rid)
        return None if body is None else answer_receipt(body)
