"""Log-probabilities in the two shapes the OpenAI API has for them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from services.gateway.text.tokenizer import TextTokenizer
from shared.protocol import TokenLogprobs

LOWEST = -9999.0
"""stands for minus infinity, which JSON cannot say"""


@dataclass(frozen=True)
class TokenEntry:
    """One output token with its log-probabilities and where its text starts in the answer."""

    token_id: int
    logprobs: TokenLogprobs
    text_offset: int


def chat_logprobs(tokenizer: TextTokenizer, entries: Sequence[TokenEntry]) -> dict[str, Any]:
    """The `logprobs` object of a chat choice."""
    return {"content": [_chat_entry(tokenizer, entry) for entry in entries], "refusal": None}


def text_logprobs(
    tokenizer: TextTokenizer, entries: Sequence[TokenEntry], num_top: int
) -> dict[str, Any]:
    """The `logprobs` object of a completions choice."""
    return {
        "tokens": [tokenizer.token_text(entry.token_id) for entry in entries],
        "token_logprobs": [_finite(entry.logprobs.logprob) for entry in entries],
        "top_logprobs": [_top_by_text(tokenizer, entry) for entry in entries] if num_top else None,
        "text_offset": [entry.text_offset for entry in entries],
    }


def _chat_entry(tokenizer: TextTokenizer, entry: TokenEntry) -> dict[str, Any]:
    top = zip(entry.logprobs.top_ids, entry.logprobs.top_logprobs, strict=True)
    return {
        **_named(tokenizer, entry.token_id, entry.logprobs.logprob),
        "top_logprobs": [_named(tokenizer, token_id, logprob) for token_id, logprob in top],
    }


def _named(tokenizer: TextTokenizer, token_id: int, logprob: float) -> dict[str, Any]:
    return {
        "token": tokenizer.token_text(token_id),
        "logprob": _finite(logprob),
        "bytes": list(tokenizer.token_utf8(token_id)),
    }


def _top_by_text(tokenizer: TextTokenizer, entry: TokenEntry) -> dict[str, float]:
    """Text -> logprob; of two tokens with one text the likelier stays."""
    pairs = list(zip(entry.logprobs.top_ids, entry.logprobs.top_logprobs, strict=True))
    named = {tokenizer.token_text(token_id): _finite(value) for token_id, value in reversed(pairs)}
    named.setdefault(tokenizer.token_text(entry.token_id), _finite(entry.logprobs.logprob))
    return named


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else LOWEST
