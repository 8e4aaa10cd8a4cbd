"""Server-sent events of one answer, built around JSON that is serialised once per request."""

import json
from collections.abc import Sequence
from json.encoder import encode_basestring_ascii
from typing import Any

from services.gateway.answer_shape import AnswerIdentity, AnswerShape
from services.gateway.logprobs import TokenEntry
from shared.protocol import FinishReason

DONE = b"data: [DONE]\n\n"


class ChunkWriter:
    """Chunk bytes of one stream. `with_usage`: chunks carry a `usage` field (null until the
    last), as `include_usage` asks for."""

    def __init__(self, shape: AnswerShape, identity: AnswerIdentity, *, with_usage: bool) -> None:
        opening = {
            "id": shape.id_prefix + identity.rid,
            "object": shape.chunk_object_name,
            "created": identity.created_s,
            "model": identity.model,
            "system_fingerprint": None,
        }
        self._shape = shape
        self._opening = f'data: {_json(opening)[:-1]},"choices":['
        self._closing = '],"usage":null}\n\n' if with_usage else "]}\n\n"
        self._text_head = self._opening + shape.text_head
        self._text_tail = f'{shape.text_tail}null,"finish_reason":null}}{self._closing}'

    def first(self, usage: dict[str, Any] | None = None) -> bytes:
        """The chunk that opens the stream, if this shape has one."""
        if not self._shape.first_choice:
            return b""
        return self._chunk(self._shape.first_choice, usage)

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
        logprobs = "null" if entries is None else _json(self._shape.logprobs(entries))
        choice = (
            f"{self._shape.text_head}{encode_basestring_ascii(text)}{self._shape.text_tail}"
            f'{logprobs},"finish_reason":null}}'
        )
        return self._chunk(choice, usage)

    def last(self, reason: FinishReason, usage: dict[str, Any] | None = None) -> bytes:
        """The chunk with the finish reason."""
        return self._chunk(f'{self._shape.last_head}"{reason}"}}', usage)

    def usage(self, usage: dict[str, Any]) -> bytes:
        """The chunk without choices that ends a stream with `include_usage`."""
        return self._chunk("", usage)

    def _chunk(self, choice: str, usage: dict[str, Any] | None) -> bytes:
        closing = self._closing if usage is None else f'],"usage":{_json(usage)}}}\n\n'
        return (self._opening + choice + closing).encode("ascii")


def error_event(body: dict[str, Any]) -> bytes:
    """The event that ends a stream which failed after it began; nothing follows it."""
    return f"data: {_json(body)}\n\n".encode("ascii")


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
