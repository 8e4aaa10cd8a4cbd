"""A message as server-sent events.

message_start, then for each block of content its start, deltas and stop, then message_delta with
the stop reason and all of the usage, and message_stop. A failure is an `error` event, the last.
"""

from json.encoder import encode_basestring_ascii
from typing import Any

from services.gateway.answer.answer import Answer
from services.gateway.answer.choice import ChoiceText, Receipt, Usage
from services.gateway.answer.messages.content import (
    message_ending,
    message_id,
    message_usage,
    opened_block,
)
from services.gateway.answer.parted_text import taken_parts
from services.gateway.answer.sse import COMMENT, compact
from services.gateway.http.errors import error_body, error_status
from services.gateway.http.message_errors import message_error
from services.gateway.parts.part import (
    CallArguments,
    CallEnd,
    CallStart,
    ContentPart,
    Part,
    ReasoningPart,
)
from shared.errors import BatonError

PING = b'event: ping\ndata: {"type":"ping"}\n\n'


class MessageStream:
    """The events of one message: the writer of its stream and of its only choice."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.text: ChoiceText = answer.texts[0]
        self.choices = (self,)
        self._begun = False
        self._block = ""
        """type of the block that is open"""
        self._num_blocks = 0
        self._delta_head = ""
        """of the block that is open, up to its text"""

    def opening(self, usage: Usage | None) -> bytes:
        if self._begun:
            return b""
        self._begun = True
        message: dict[str, Any] = {
            "id": message_id(self._answer),
            "type": "message",
            "role": "assistant",
            "model": self._answer.identity.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": message_usage(self._answer),
        }
        return _event("message_start", message=message)

    def plain(self, shown: str) -> bytes:
        """Once per token, so text that goes on is quick."""
        if shown and self._block == "text":
            return self._delta(shown)
        opening = self.opening(None)
        return opening + b"".join(map(self._part, taken_parts(self.text, shown)))

    def events(self, shown: str, usage: Usage | None) -> bytes:
        return self.plain(shown)

    def last(self, shown: str, usage: Usage | None, receipt: Receipt | None = None) -> bytes:
        """A receipt is next to the usage."""
        more = {} if receipt is None else {"baton": receipt}
        return (
            self.plain(shown)
            + self._close()
            + _event(
                "message_delta",
                delta=message_ending(self.text.ending),
                usage=message_usage(self._answer),
                **more,
            )
            + _event("message_stop")
        )

    def idle(self) -> bytes:
        """Nothing comes before message_start that a reader sees."""
        return PING if self._begun else COMMENT

    def ending(self, index: int, shown: str, receipt: Receipt | None) -> bytes:
        return self.last(shown, None, receipt)

    def failure(self, error: BatonError) -> bytes:
        rid = self._answer.identity.rid
        body = message_error(error_body(error), error_status(error), rid)
        return f"event: error\ndata: {compact(body)}\n\n".encode("ascii")

    def _part(self, part: Part) -> bytes:
        if isinstance(part, CallEnd):
            return self._close()
        if isinstance(part, CallStart):
            return self._open(part)
        opening = b"" if self._block == _BLOCKS[type(part)] else self._open(part)
        return opening + self._delta(part.text)

    def _delta(self, text: str) -> bytes:
        return f"{self._delta_head}{encode_basestring_ascii(text)}}}}}\n\n".encode("ascii")

    def _open(self, part: Part) -> bytes:
        """Begin the block of a part, after the end of the one before."""
        closing = self._close()
        block = opened_block(part, self.text)
        self._block, index = block["type"], self._num_blocks
        kind, field = _DELTAS[self._block]
        name = "content_block_delta"
        self._delta_head = (
            f'event: {name}\ndata: {{"type":"{name}","index":{index},'
            f'"delta":{{"type":"{kind}","{field}":'
        )
        return closing + _event("content_block_start", index=index, content_block=block)

    def _close(self) -> bytes:
        if not self._block:
            return b""
        self._block = ""
        self._num_blocks += 1
        return _event("content_block_stop", index=self._num_blocks - 1)


_BLOCKS: dict[type[Part], str] = {
    ContentPart: "text",
    ReasoningPart: "thinking",
    CallArguments: "tool_use",
}
"""kind of a part with text -> type of the block it is in"""
_DELTAS = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
}
"""type of a block -> type and field of its deltas"""


def _event(name: str, **fields: Any) -> bytes:
    shown = f",{compact(fields)[1:]}" if fields else "}"
    return f'event: {name}\ndata: {{"type":"{name}"{shown}\n\n'.encode("ascii")
