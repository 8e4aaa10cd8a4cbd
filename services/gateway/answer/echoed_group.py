"""Choices that show their prompts with log-probabilities in a stream: those come first, a few
tokens at a time, so that a long prompt holds up nobody else's tokens."""

import asyncio
from collections.abc import Iterator, Sequence

from services.gateway.answer.choice_group import ChoiceGroup, ChoiceOwner
from services.gateway.answer.echoed_text import PromptPiece
from services.gateway.answer.prompt_tokens import PromptTokens
from services.gateway.answer.submit_order import SubmitOrder
from services.gateway.owner.generation import Delta, GenerateRequest
from services.gateway.prompt.prepared import PreparedRequest
from shared.text.tokenizer import TextTokenizer

Arrived = list[tuple[int, Delta]]


class EchoedGroup(ChoiceGroup):
    """Before the first delta of a choice come the pieces of its prompt."""

    def __init__(
        self,
        owner: ChoiceOwner,
        requests: Sequence[GenerateRequest],
        order: SubmitOrder,
        starting: asyncio.Lock,
        prepared: PreparedRequest,
        tokenizer: TextTokenizer,
    ) -> None:
        super().__init__(owner, requests, order, starting)
        self._prepared = prepared
        self._tokenizer = tokenizer
        self._echoed: set[int] = set()
        self._coming: Iterator[Arrived] = iter(())

    async def __anext__(self) -> Arrived:
        await asyncio.sleep(0)
        arrived = next(self._coming, None)
        if arrived is None:
            self._coming = self._behind_prompts(await super().__anext__())
            arrived = next(self._coming)
        return arrived

    def _behind_prompts(self, arrived: Arrived) -> Iterator[Arrived]:
        for index, _ in arrived:
            if index not in self._echoed:
                self._echoed.add(index)
                tokens = prompt_tokens(self, self._prepared, self._tokenizer, index)
                for piece in _pieces(tokens, self._prepared.sampling.logprobs):
                    yield [(index, piece)]
        yield arrived


def prompt_tokens(
    group: ChoiceGroup, prepared: PreparedRequest, tokenizer: TextTokenizer, index: int
) -> PromptTokens:
    """Of the prompt of a choice whose first delta has arrived."""
    prompt = prepared.prompts[index // prepared.num_choices]
    values = group.prompt_logprobs(index)
    return PromptTokens(tokenizer, prompt.token_ids, prompt.text, values)


def _pieces(tokens: PromptTokens, num_top: int) -> Iterator[PromptPiece]:
    """All of a prompt; the last piece has what is left of its text."""
    start, before = 0, None
    for entries in tokens.entries(num_top):
        if before is not None:
            end = entries[0].text_offset
            yield PromptPiece.of(tokens.text[start:end], before)
            start = end
        before = entries
    yield PromptPiece.of(tokens.text[start:], before or [])
