"""What writes an answer in the shape of one API: as events, or as one object.

The response reads tokens and says when; the writer says what. It does no I/O.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from services.gateway.answer.answer import Answer
from services.gateway.answer.choice import ChoiceText, Receipt, Usage
from shared.errors import BatonError


class ChoiceWriter(Protocol):
    """The events of one choice."""

    @property
    def text(self) -> ChoiceText:
        """What the choice's tokens are pushed into."""

    def opening(self, usage: Usage | None) -> bytes:
        """What comes before the first token, once. `usage`: so far, where every event has it."""

    def plain(self, shown: str) -> bytes:
        """What text causes in the middle of an answer, where nothing goes with it."""

    def events(self, shown: str, usage: Usage | None) -> bytes:
        """The same where something may."""

    def last(self, shown: str, usage: Usage | None) -> bytes:
        """The choice's last text and its end; other choices go on."""


class StreamWriter(Protocol):
    """The events of one answer."""

    @property
    def choices(self) -> Sequence[ChoiceWriter]:
        """In order."""

    def idle(self) -> bytes:
        """Says that the answer goes on, where nothing was sent for long."""

    def ending(self, index: int, shown: str, receipt: Receipt | None) -> bytes:
        """The last text of the choice that ends last, and the end of the stream."""

    def failure(self, error: BatonError) -> bytes:
        """The end of a stream that fails after it began."""


class BodyWriter(Protocol):
    """One answer as an object."""

    def add(self, index: int, shown: str) -> None:
        """More text of a choice."""

    def body(self) -> dict[str, Any]:
        """Once all choices have ended."""


@dataclass(frozen=True)
class AnswerWriters:
    """Those of one API."""

    stream: Callable[[Answer], StreamWriter]
    whole: Callable[[Answer], BodyWriter]
