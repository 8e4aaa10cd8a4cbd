"""Log-probabilities in the two shapes the OpenAI API has for them."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from shared.text.answer_text import TokenEntry
from shared.text.tokenizer import TextTokenizer

LOWEST = -9999.0
"""stands for minus infinity, which JSON cannot say"""


class TokenNames:
    """How log-probabilities name tokens: by their text, or as `token_id:5`."""

    def __init__(self, tokenizer: TextTokenizer, *, as_ids: bool = False) -> None:
        self._tokenizer = tokenizer
        self._as_ids = as_ids

    def name(self, token_id: int) -> str:
        return f"token_id:{token_id}" if self._as_ids else self._tokenizer.token_text(token_id)

    def utf8(self, token_id: int) -> bytes:
        """Of the text, always."""
        return self._tokenizer.token_utf8(token_id)

    def text(self, token_id: int) -> str:
        return self._tokenizer.token_text(token_id)


def chat_logprobs(names: TokenNames, entries: Sequence[TokenEntry]) -> dict[str, Any]:
    """The `logprobs` object of a chat choice."""
    return {"content": [_chat_entry(names, entry) for entry in entries], "refusal": None}


def text_logprobs(names: TokenNames, entries: Sequence[TokenEntry]) -> dict[str, Any]:
    """The `logprobs` object of a completions choice; the chosen token is among the top ones."""
    return {name: [shown(names, entry) for entry in entries] for name, shown in TEXT_LISTS.items()}


def _logprob(names: TokenNames, entry: TokenEntry) -> float | None:
    return None if entry.logprobs is None else finite(entry.logprobs.logprob)


def _chat_entry(names: TokenNames, entry: TokenEntry) -> dict[str, Any]:
    assert entry.logprobs is not None
    top = zip(entry.logprobs.top_ids, entry.logprobs.top_logprobs, strict=True)
    return {
        **_named(names, entry.token_id, entry.logprobs.logprob),
        "top_logprobs": [_named(names, token_id, logprob) for token_id, logprob in top],
    }


def _named(names: TokenNames, token_id: int, logprob: float) -> dict[str, Any]:
    return {
        "token": names.name(token_id),
        "logprob": finite(logprob),
        "bytes": list(names.utf8(token_id)),
    }


def _top_by_text(names: TokenNames, entry: TokenEntry) -> dict[str, float] | None:
    """Text -> logprob; of two tokens with one text the likelier stays."""
    if entry.logprobs is None:
        return None
    pairs = list(zip(entry.logprobs.top_ids, entry.logprobs.top_logprobs, strict=True))
    named = {names.name(token_id): finite(value) for token_id, value in reversed(pairs)}
    named.setdefault(names.name(entry.token_id), finite(entry.logprobs.logprob))
    return named


def finite(logprob: float) -> float:
    """As JSON can say it."""
    return logprob if math.isfinite(logprob) else LOWEST


TEXT_LISTS: dict[str, Callable[[TokenNames, TokenEntry], Any]] = {
    "tokens": lambda names, entry: names.name(entry.token_id),
    "token_logprobs": _logprob,
    "top_logprobs": _top_by_text,
    "text_offset": lambda names, entry: entry.text_offset,
}
"""the lists of a completions choice, and what each has of a token"""
