"""The typed parts that an answer's text is split into: reasoning, content, tool calls."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ContentPart:
    """More of the answer itself."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningPart:
    """More of what the model thought before its answer."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call of a function begins."""

    index: int
    """of the call within its answer, from 0"""
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of the arguments' JSON text."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """The arguments are complete."""

    index: int


Part = ContentPart | ReasoningPart | CallStart | CallArguments | CallEnd


class ToolParser(Protocol):
    """Splits text that grows into content and calls. However the text is cut into pieces, the
    joined parts are the same."""

    def push(self, text: str) -> Sequence[Part]:
        """The parts that are certain with this text."""

    def end(self) -> Sequence[Part]:
        """What was held back, once nothing follows."""


def joined(parts: Sequence[Part]) -> list[Part]:
    """Parts with neighbours of one kind put together."""
    made: list[Part] = []
    for part in parts:
        last = made[-1] if made else None
        if isinstance(part, ContentPart) and isinstance(last, ContentPart):
            made[-1] = ContentPart(last.text + part.text)
        elif isinstance(part, ReasoningPart) and isinstance(last, ReasoningPart):
            made[-1] = ReasoningPart(last.text + part.text)
        elif isinstance(part, CallArguments) and isinstance(last, CallArguments):
            made[-1] = CallArguments(part.index, last.text + part.text)
        else:
            made.append(part)
    return made
