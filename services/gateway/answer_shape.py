"""The JSON around an answer: chat completions and completions, whole and in chunks.

Both shapes say the same through different fields. For streams each gives the JSON before and
after the text, made once per request, so that a token costs one `join`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from services.gateway.logprobs import TokenEntry, chat_logprobs, text_logprobs
from services.gateway.tokenizer import TextTokenizer
from shared.protocol import FinishReason


@dataclass(frozen=True)
class AnswerIdentity:
    """What every object of one answer repeats."""

    rid: str
    model: str
    created_s: int


class AnswerShape(Protocol):
    """How one endpoint shows an answer."""

    id_prefix: str
    object_name: str
    chunk_object_name: str
    first_choice: str
    """JSON of the choice that opens a stream; empty if none does"""
    text_head: str
    text_tail: str
    """JSON of a chunk's choice: head, text, tail, logprobs, then finish_reason null"""
    last_head: str
    """JSON of the choice that ends a stream, up to its finish_reason"""

    def logprobs(self, entries: Sequence[TokenEntry]) -> dict[str, Any]:
        """The `logprobs` object of these tokens."""

    def choice(
        self, text: str, entries: Sequence[TokenEntry] | None, reason: FinishReason
    ) -> dict[str, Any]:
        """The one choice of a whole answer; `entries` None where none were asked for."""


class ChatShape:
    """/v1/chat/completions."""

    id_prefix = "chatcmpl-"
    object_name = "chat.completion"
    chunk_object_name = "chat.completion.chunk"
    first_choice = (
        '{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}'
    )
    text_head = '{"index":0,"delta":{"content":'
    text_tail = '},"logprobs":'
    last_head = '{"index":0,"delta":{},"logprobs":null,"finish_reason":'

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer

    def logprobs(self, entries: Sequence[TokenEntry]) -> dict[str, Any]:
        return chat_logprobs(self._tokenizer, entries)

    def choice(
        self, text: str, entries: Sequence[TokenEntry] | None, reason: FinishReason
    ) -> dict[str, Any]:
        return {
            "index": 0,
            "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": None if entries is None else self.logprobs(entries),
            "finish_reason": reason,
        }


class TextShape:
    """/v1/completions."""

    id_prefix = "cmpl-"
    object_name = "text_completion"
    chunk_object_name = "text_completion"
    first_choice = ""
    text_head = '{"index":0,"text":'
    text_tail = ',"logprobs":'
    last_head = '{"index":0,"text":"","logprobs":null,"finish_reason":'

    def __init__(self, tokenizer: TextTokenizer, num_top: int) -> None:
        self._tokenizer = tokenizer
        self._num_top = num_top

    def logprobs(self, entries: Sequence[TokenEntry]) -> dict[str, Any]:
        return text_logprobs(self._tokenizer, entries, self._num_top)

    def choice(
        self, text: str, entries: Sequence[TokenEntry] | None, reason: FinishReason
    ) -> dict[str, Any]:
        return {
            "index": 0,
            "text": text,
            "logprobs": None if entries is None else self.logprobs(entries),
            "finish_reason": reason,
        }


def answer_object(
    shape: AnswerShape, identity: AnswerIdentity, choice: dict[str, Any], usage: dict[str, Any]
) -> dict[str, Any]:
    """The body of a whole answer."""
    return {
        "id": shape.id_prefix + identity.rid,
        "object": shape.object_name,
        "created": identity.created_s,
        "model": identity.model,
        "system_fingerprint": None,
        "choices": [choice],
        "usage": usage,
    }
