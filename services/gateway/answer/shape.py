"""The JSON around an answer: chat completions and completions, whole and in chunks.

Both shapes say the same through different fields. For streams each gives the JSON before and
after the text, made once per choice, so that a token costs one `join`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from services.gateway.answer.logprobs import TokenNames, chat_logprobs, text_logprobs
from shared.text.answer_text import TokenEntry
from shared.text.ending import Ending
from shared.text.tokenizer import TextTokenizer


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
    """JSON of a chunk's choice after its index, as all of these: the one that opens a choice's
    stream; empty if none does"""
    text_head: str
    text_tail: str
    """text: head, text, tail, logprobs, then finish_reason"""
    names: TokenNames
    nothing: str | dict[str, Any]
    """what a choice's last chunk shows where all text is out"""

    def logprobs(self, entries: Sequence[TokenEntry]) -> dict[str, Any]:
        """The `logprobs` object of these tokens."""

    def choice(
        self, text: str, entries: Sequence[TokenEntry] | None, ending: Ending
    ) -> dict[str, Any]:
        """A choice of a whole answer, but its index; `entries` None where none were asked for."""


class ChatShape:
    """/v1/chat/completions."""

    id_prefix = "chatcmpl-"
    object_name = "chat.completion"
    chunk_object_name = "chat.completion.chunk"
    first_choice = '"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}'
    text_head = '"delta":{"content":'
    text_tail = '},"logprobs":'
    nothing: str | dict[str, Any] = {}  # noqa: RUF012

    def __init__(self, tokenizer: TextTokenizer, *, tokens_as_ids: bool = False) -> None:
        self.names = TokenNames(tokenizer, as_ids=tokens_as_ids)

    def logprobs(self, entries: Sequence[TokenEntry]) -> dict[str, Any]:
        return chat_logprobs(self.names, entries)

    def choice(
        self, text: str, entries: Sequence[TokenEntry] | None, ending: Ending
    ) -> dict[str, Any]:
        return {
            "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": None if entries is None else self.logprobs(entries),
            **ending.fields(),
        }


class TextShape:
    """/v1/completions."""

    id_prefix = "cmpl-"
    object_name = "text_completion"
    chunk_object_name = "text_completion"
    first_choice = ""
    text_head = '"text":'
    text_tail = ',"logprobs":'
    nothing: str | dict[str, Any] = ""

    def __init__(self, tokenizer: TextTokenizer, *, tokens_as_ids: bool = False) -> None:
        self.names = TokenNames(tokenizer, as_ids=tokens_as_ids)

    def logprobs(self, entries: Sequence[TokenEntry]) -> dict[str, Any]:
        return text_logprobs(self.names, entries)

    def choice(
        self, text: str, entries: Sequence[TokenEntry] | None, ending: Ending
    ) -> dict[str, Any]:
        return {
            "text": text,
            "logprobs": None if entries is None else self.logprobs(entries),
            **ending.fields(),
        }


def answer_object(
    shape: AnswerShape,
    identity: AnswerIdentity,
    choices: Sequence[dict[str, Any]],
    usage: dict[str, Any],
) -> dict[str, Any]:
    """The body of a whole answer; `choices` in the order of their indexes."""
    return {
        "id": shape.id_prefix + identity.rid,
        "object": shape.object_name,
        "created": identity.created_s,
        "model": identity.model,
        "system_fingerprint": None,
        "choices": [{"index": index, **choice} for index, choice in enumerate(choices)],
        "usage": usage,
    }
