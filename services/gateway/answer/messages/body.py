"""A message as one object."""

from typing import Any

from services.gateway.answer.answer import Answer
from services.gateway.answer.messages.content import (
    call_input,
    message_ending,
    message_id,
    message_usage,
    opened_block,
)
from services.gateway.answer.parted_text import taken_parts
from services.gateway.parts.part import (
    CallArguments,
    CallEnd,
    ContentPart,
    Part,
    ReasoningPart,
    joined,
)


class MessageBody:
    """Collects the parts of the only choice until it has ended."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._parts: list[Part] = []

    def add(self, index: int, shown: str) -> None:
        self._parts += taken_parts(self._answer.texts[index], shown)

    def body(self) -> dict[str, Any]:
        answer = self._answer
        (text,) = answer.texts
        return {
            "id": message_id(answer),
            "type": "message",
            "role": "assistant",
            "model": answer.identity.model,
            "content": self._content(),
            **message_ending(text.ending),
            "usage": message_usage(answer),
        }

    def _content(self) -> list[dict[str, Any]]:
        """The blocks in the order of the text: one for each run of parts of a kind, one a call."""
        (text,) = self._answer.texts
        blocks: list[dict[str, Any]] = []
        arguments = ""
        for part in joined(self._parts):
            if isinstance(part, CallArguments):
                arguments += part.text
                blocks[-1]["input"] = call_input(arguments)
            elif not isinstance(part, CallEnd):
                arguments = ""
                blocks.append(opened_block(part, text) | _shown(part))
        return blocks


def _shown(part: Part) -> dict[str, str]:
    """The text of a block that has one."""
    if isinstance(part, ContentPart):
        return {"text": part.text}
    return {"thinking": part.text} if isinstance(part, ReasoningPart) else {}
