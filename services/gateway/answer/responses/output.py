"""The items that an answer in the shape of OpenAI's responses is made of.

Each run of reasoning or of text is an item, and so is each call, in the order of the text.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

from services.gateway.answer.choice import ChoiceText
from services.gateway.answer.parted_text import PartedText
from services.gateway.parts.part import (
    CallEnd,
    CallStart,
    ContentPart,
    Part,
    ReasoningPart,
)

ItemKind = Literal["message", "reasoning", "function_call"]
ItemStatus = Literal["in_progress", "completed", "incomplete"]
PREFIXES: dict[ItemKind, str] = {"message": "msg", "reasoning": "rs", "function_call": "fc"}


@dataclass
class OutputItem:
    """One item; its text grows."""

    kind: ItemKind
    item_id: str
    name: str = ""
    call_id: str = ""
    """both of a call only"""
    status: ItemStatus = "in_progress"
    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def part(self, text: str) -> dict[str, Any]:
        """Its only part of content, of an item that is no call."""
        if self.kind == "reasoning":
            return {"type": "reasoning_text", "text": text}
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

    def opened(self) -> dict[str, Any]:
        """The item without its text, as a stream begins it."""
        item: dict[str, Any] = {"id": self.item_id, "type": self.kind, "status": self.status}
        match self.kind:
            case "function_call":
                return {**item, "call_id": self.call_id, "name": self.name, "arguments": ""}
            case "reasoning":
                return {**item, "summary": [], "content": []}
            case "message":
                return {**item, "role": "assistant", "content": []}

    def shown(self) -> dict[str, Any]:
        """The item with all the text it has."""
        if self.kind == "function_call":
            return {**self.opened(), "arguments": self.text}
        return {**self.opened(), "content": [self.part(self.text)]}


class ResponseOutput:
    """The items of one answer as they appear."""

    def __init__(self, text: ChoiceText, rid: str) -> None:
        self._text = text
        self._rid = rid
        self.items: list[OutputItem] = []

    @property
    def open_item(self) -> OutputItem | None:
        """The item that still grows."""
        item = self.items[-1] if self.items else None
        return item if item is not None and item.status == "in_progress" else None

    def begins(self, part: Part) -> bool:
        """Whether a part is the first of an item."""
        item = self.open_item
        return isinstance(part, CallStart) or item is None or item.kind != _kind(part)

    def add(self, part: Part) -> None:
        """Put a part where it belongs; the item before one that begins is complete."""
        if isinstance(part, CallEnd):
            self.close("completed")
            return
        if self.begins(part):
            self.close("completed")
            self._open(part)
        if not isinstance(part, CallStart):
            self.items[-1].pieces.append(part.text)

    def close(self, status: ItemStatus) -> None:
        """The open item, if one is, has its last text."""
        if (item := self.open_item) is not None:
            item.status = status

    def _open(self, part: Part) -> None:
        kind = _kind(part)
        item = OutputItem(kind, f"{PREFIXES[kind]}_{self._rid}_{len(self.items)}")
        if isinstance(part, CallStart):
            assert isinstance(self._text, PartedText)
            item.name, item.call_id = part.name, self._text.call_id(part.index)
        self.items.append(item)


def _kind(part: Part) -> ItemKind:
    if isinstance(part, ContentPart):
        return "message"
    return "reasoning" if isinstance(part, ReasoningPart) else "function_call"
