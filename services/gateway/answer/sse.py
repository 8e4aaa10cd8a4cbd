"""Server-sent events of one answer, built around JSON that is serialised once per choice."""

import json
from collections.abc import Sequence
from json.encoder import encode_basestring_ascii
from typing import Any

from services.gateway.answer.logprobs import TokenEntry
from services.gateway.answer.shape import AnswerIdentity, AnswerShape
from services.gateway.parts.part import AnswerReason

DONE = b"data: [DONE]\n\n"


class ChunkWriter:
    """Chunk bytes of one choice of a stream. `with_usage`: chunks carry a `usage` field (null
    until the last), as `include_usage` asks for."""

    def __init__(
        self, shape: AnswerShape, identity: AnswerIdentity, *, with_usage: bool, index: int = 0
    ) -> None:
        opening = {
            "id": shape.id_prefix + identity.rid,
            "object": shape.chunk_object_name,
            "created": identity.created_s,
            "model": identity.model,
            "system_fingerprint": None,
        }
        self._shape = shape
        self._opening = f'data: {_json(opening)[:-1]},"choices":['
        self._choice = f'{{"index":{index},'
        self._no_usage = ',"usage":null' if with_usage else ""
        self._text_head = self._opening + self._choice + shape.text_head
        self._text_tail = f'{shape.text_tail}null,"finish_reason":null}}]{self._no_usage}}}\n\n'

    def first(self, usage: dict[str, Any] | None = None) -> bytes:
        """The chunk that opens the choice, if this shape has one."""
        if not self._shape.first_choice:
            return b""
        return self._chunk(self._choice + self._shape.first_choice, usage)

    def text(self, text: str) -> bytes:
        """A chunk of text and nothing else: the common case, once per token."""
        return (self._text_head + encode_basestring_ascii(text) + self._text_tail).encode("ascii")

    def text_with(
        self,
        text: str,
        entries: Sequence[TokenEntry] | None,
        usage: dict[str, Any] | None,
    ) -> bytes:
        """A chunk of text with log-probabilities or the usage so far."""
        shape = self._shape
        logprobs = "null" if entries is None else _json(shape.logprobs(entries))
        choice = (
            f"{self._choice}{shape.text_head}{encode_basestring_ascii(text)}{shape.text_tail}"
            f'{logprobs},"finish_reason":null}}'
        )
        return self._chunk(choice, usage)

    def delta(
        self,
        delta: dict[str, Any],
        entries: Sequence[TokenEntry] | None,
        usage: dict[str, Any] | None,
    ) -> bytes:
        """A chunk of a chat with any other delta than text."""
        logprobs = None if entries is None else self._shape.logprobs(entries)
        rest = {"delta": delta, "logprobs": logprobs, "finish_reason": None}
        return self._chunk(self._choice + _json(rest)[1:], usage)

    def last(
        self,
        reason: AnswerReason,
        usage: dict[str, Any] | None = None,
        receipt: dict[str, Any] | None = None,
    ) -> bytes:
        """The choice's chunk with its finish reason."""
        choice = f'{self._choice}{self._shape.last_head}"{reason}"}}'
        return self._chunk(choice, usage, receipt)

    def usage(self, usage: dict[str, Any], receipt: dict[str, Any] | None = None) -> bytes:
        """The chunk without choices that ends a stream with `include_usage`."""
        return self._chunk("", usage, receipt)

    def _chunk(
        self, choice: str, usage: dict[str, Any] | None, receipt: dict[str, Any] | None = None
    ) -> bytes:
        cost = self._no_usage if usage is None else f',"usage":{_json(usage)}'
        story = "" if receipt is None else f',"baton":{_json(receipt)}'
        return f"{self._opening}{choice}]{cost}{story}}}\n\n".encode("ascii")


def error_event(body: dict[str, Any]) -> bytes:
    """The event that ends a stream which failed after it began; nothing follows it."""
    return f"data: {_json(body)}\n\n".encode("ascii")


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
