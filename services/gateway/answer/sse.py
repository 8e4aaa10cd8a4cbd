"""Server-sent events of one answer, built around JSON that is serialised once per choice."""

import json
from collections.abc import Sequence
from json.encoder import encode_basestring_ascii
from typing import Any

from services.gateway.answer.shape import AnswerIdentity, AnswerShape
from shared.text.answer_text import TokenEntry
from shared.text.ending import Ending

DONE = b"data: [DONE]\n\n"
COMMENT = b": the answer goes on\n\n"
"""no event: readers skip it"""


class ChunkWriter:
    """Chunk bytes of one choice of a stream. `with_usage`: chunks carry a `usage` field (null
    until the last), as `include_usage` asks for."""

    def __init__(
        self,
        shape: AnswerShape,
        identity: AnswerIdentity,
        *,
        with_usage: bool,
        index: int = 0,
        prompt_ids: Sequence[int] | None = None,
    ) -> None:
        """`prompt_ids`: of the choice's prompt, where the first chunk shows them."""
        opening = {
            "id": shape.id_prefix + identity.rid,
            "object": shape.chunk_object_name,
            "created": identity.created_s,
            "model": identity.model,
            "system_fingerprint": None,
        }
        self._shape = shape
        self._opening = f'data: {compact(opening)[:-1]},"choices":['
        self._choice = f'{{"index":{index},'
        self._prompt = "" if prompt_ids is None else f',"prompt_token_ids":{compact(prompt_ids)}'
        self._no_usage = ',"usage":null' if with_usage else ""
        self._text_head = self._opening + self._choice + shape.text_head
        self._text_tail = f'{shape.text_tail}null,"finish_reason":null}}]{self._no_usage}}}\n\n'
        self.nothing = shape.nothing
        """what the last chunk shows where all text is out"""

    def first(self, usage: dict[str, Any] | None = None) -> bytes:
        """The chunk that opens the choice, if this shape has one."""
        if not self._shape.first_choice:
            return b""
        return self._chunk(self._choice + self._shape.first_choice, usage, self._take_prompt())

    def text(self, text: str) -> bytes:
        """A chunk of text and nothing else: the common case, once per token."""
        return (self._text_head + encode_basestring_ascii(text) + self._text_tail).encode("ascii")

    def piece(
        self,
        content: str | dict[str, Any],
        entries: Sequence[TokenEntry] | None,
        usage: dict[str, Any] | None,
        *,
        token_ids: Sequence[int] | None = None,
        ending: Ending | None = None,
        receipt: dict[str, Any] | None = None,
    ) -> bytes:
        """A chunk of text, or with any other delta of a chat, and what goes with it: usage so
        far, the tokens' log-probabilities and ids, and in the choice's last chunk its ending."""
        shape = self._shape
        if isinstance(content, str):
            shown = f"{shape.text_head}{encode_basestring_ascii(content)}{shape.text_tail}"
        else:
            shown = f'"delta":{compact(content)},"logprobs":'
        logprobs = "null" if entries is None else compact(shape.logprobs(entries))
        end = '"finish_reason":null' if ending is None else ending.json()
        ids = "" if token_ids is None else f',"token_ids":{compact(token_ids)}'
        choice = f"{self._choice}{shown}{logprobs},{end}{ids}{self._take_prompt()}}}"
        return self._chunk(choice, usage, "" if receipt is None else f',"baton":{compact(receipt)}')

    def usage(self, usage: dict[str, Any], receipt: dict[str, Any] | None = None) -> bytes:
        """The chunk without choices that ends a stream with `include_usage`."""
        return self._chunk("", usage, "" if receipt is None else f',"baton":{compact(receipt)}')

    def _take_prompt(self) -> str:
        prompt, self._prompt = self._prompt, ""
        return prompt

    def _chunk(self, choice: str, usage: dict[str, Any] | None, more: str) -> bytes:
        cost = self._no_usage if usage is None else f',"usage":{compact(usage)}'
        return f"{self._opening}{choice}]{cost}{more}}}\n\n".encode("ascii")


def error_event(body: dict[str, Any]) -> bytes:
    """The event that ends a stream which failed after it began; nothing follows it."""
    return f"data: {compact(body)}\n\n".encode("ascii")


def compact(value: Any) -> str:
    """JSON without spaces."""
    return json.dumps(value, separators=(",", ":"))
