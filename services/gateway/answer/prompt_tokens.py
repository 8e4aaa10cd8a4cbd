"""The tokens of a prompt with their log-probabilities, as an answer shows them.

There may be hundreds of thousands of numbers, so everything comes in batches of a few tokens, and
whoever reads them lets the event loop have a turn after each.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from services.gateway.answer.logprobs import TEXT_LISTS, TokenNames, finite
from services.gateway.http.json_lists import JsonList
from shared.message_parts.prompt_logprobs import PromptLogprobs, floats, whole_numbers
from shared.protocol import TokenLogprobs
from shared.text.answer_text import TokenEntry
from shared.text.tokenizer import TextTokenizer

BATCH_TOKENS = 16
"""with 20 alternatives each, some 2 ms of work"""


class PromptToken(NamedTuple):
    """One token of a prompt."""

    token_id: int
    rank: int
    """how many tokens are as likely as it at least; 0 of the first, before which nothing is"""
    logprobs: TokenLogprobs | None


@dataclass(frozen=True)
class PromptTokens:
    """Of one prompt; each reading starts from scratch."""

    tokenizer: TextTokenizer
    token_ids: Sequence[int]
    text: str
    """as the answer shows it, if it does"""
    pieces: Sequence[PromptLogprobs]
    """of all tokens but the first"""

    def batches(self, num_top: int) -> Iterator[list[PromptToken]]:
        """All tokens, each with its `num_top` likeliest alternatives."""
        yield [PromptToken(self.token_ids[0], 0, None)]
        for piece in self.pieces:
            logprobs, ranks = floats(piece.logprobs), whole_numbers(piece.ranks)
            ids, tops = whole_numbers(piece.top_ids), floats(piece.top_logprobs)
            told = len(ids) // piece.num_tokens
            for start in range(0, piece.num_tokens, BATCH_TOKENS):
                batch = []
                for at in range(start, min(start + BATCH_TOKENS, piece.num_tokens)):
                    top = slice(told * at, told * at + num_top)
                    found = TokenLogprobs(logprobs[at], tuple(ids[top]), tuple(tops[top]))
                    batch.append(
                        PromptToken(self.token_ids[piece.first + at], int(ranks[at]), found)
                    )
                yield batch

    def entries(self, num_top: int) -> Iterator[list[TokenEntry]]:
        """The same as output tokens are shown, with the places of their texts in the prompt's."""
        detokenizer, num_chars = self.tokenizer.detokenizer(), 0
        for batch in self.batches(num_top):
            entries = []
            for token in batch:
                place = min(num_chars, len(self.text))
                entries.append(TokenEntry(token.token_id, token.logprobs, place))
                num_chars += len(detokenizer.push((token.token_id,)))
            yield entries


def prompt_list(tokens: PromptTokens, names: TokenNames, num_top: int) -> JsonList:
    """What vLLM calls `prompt_logprobs`: null, then for each token an object of token ids."""
    return JsonList([_by_id(token, names) for token in batch] for batch in tokens.batches(num_top))


def echoed_logprobs(
    tokens: PromptTokens, names: TokenNames, num_top: int, answer: dict[str, Any]
) -> dict[str, JsonList]:
    """The `logprobs` object of a choice that shows its prompt; `answer`: that of its own tokens."""
    return {
        name: JsonList(_followed(tokens, names, num_top, name, answer[name])) for name in TEXT_LISTS
    }


def _followed(
    tokens: PromptTokens, names: TokenNames, num_top: int, name: str, answer: Sequence[Any]
) -> Iterator[Sequence[Any]]:
    """One of the lists: of the prompt, then of the answer."""
    shown = TEXT_LISTS[name]
    for entries in tokens.entries(num_top):
        yield [shown(names, entry) for entry in entries]
    yield answer


def _by_id(token: PromptToken, names: TokenNames) -> dict[str, Any] | None:
    """The token itself first, then the likeliest in their order; null for the first of a prompt."""
    if token.logprobs is None:
        return None
    found = token.logprobs
    ranked = [(token.token_id, found.logprob, token.rank)]
    ranked += [
        (token_id, logprob, at)
        for at, (token_id, logprob) in enumerate(
            zip(found.top_ids, found.top_logprobs, strict=True), start=1
        )
    ]
    return {
        str(token_id): {
            "logprob": finite(logprob),
            "rank": rank,
            "decoded_token": names.text(token_id),
        }
        for token_id, logprob, rank in ranked
    }
