"""One choice of an answer: the place where its text becomes JSON, streamed or whole.

The plain classes are for text that is all content; the parted ones for text with reasoning or
tool calls in it.
"""

from typing import Any

from services.gateway.answer.logprobs import TokenEntry
from services.gateway.answer.parted_text import PartedText
from services.gateway.answer.shape import AnswerShape
from services.gateway.answer.sse import ChunkWriter
from services.gateway.answer.text import AnswerText
from services.gateway.parts.part import (
    CallArguments,
    CallEnd,
    CallStart,
    ContentPart,
    Part,
    ReasoningPart,
    joined,
)

Usage = dict[str, Any]
ChoiceText = AnswerText | PartedText


class StreamedChoice:
    """Turns shown text into the chunks of one index."""

    def __init__(self, text: AnswerText, chunks: ChunkWriter, *, with_logprobs: bool) -> None:
        self.text = text
        self._chunks = chunks
        self._with_logprobs = with_logprobs
        self._opened = False

    def plain(self, shown: str) -> bytes:
        """What `events` gives for text in the middle of an answer, without log-probabilities
        and usage: the common case, once per token."""
        if not self._opened:
            return self.events(shown, None)
        return self._chunks.text(shown) if shown else b""

    def events(self, shown: str, usage: Usage | None) -> bytes:
        """The chunks that this text causes, but the one with the finish reason; none if all of
        it is held back. `usage`: so far, where every chunk carries it."""
        opening = b"" if self._opened else self._chunks.first(usage)
        self._opened = True
        entries = self.text.take_entries()
        if not shown and not entries:
            return opening
        return opening + self._chunks.text_with(shown, self._wanted(entries), usage)

    def end(self, usage: Usage | None, receipt: dict[str, Any] | None = None) -> bytes:
        """The chunk with the finish reason."""
        assert self.text.finish_reason is not None
        return self._chunks.last(self.text.finish_reason, usage, receipt)

    def _wanted(self, entries: list[TokenEntry]) -> list[TokenEntry] | None:
        return entries if self._with_logprobs else None


class StreamedParts:
    """Turns parts into the chunks of one index; `shown` is always empty here."""

    def __init__(self, text: PartedText, chunks: ChunkWriter, *, with_logprobs: bool) -> None:
        self.text = text
        self._chunks = chunks
        self._with_logprobs = with_logprobs
        self._opened = False

    def plain(self, shown: str) -> bytes:
        return self.events(shown, None)

    def events(self, shown: str, usage: Usage | None) -> bytes:
        """The chunks of the parts that came, but the one with the finish reason. The first one
        has the log-probabilities of all."""
        events = b"" if self._opened else self._chunks.first(usage)
        self._opened = True
        entries = self.text.take_entries()
        parts = joined(self.text.take_parts())
        if not entries and usage is None:
            return events + b"".join(map(self._chunk, parts))
        deltas = [_delta(part, self.text) for part in parts]
        for delta in [delta for delta in deltas if delta] or [{}] * bool(entries):
            wanted = entries if self._with_logprobs and entries else None
            events += self._chunks.delta(delta, wanted, usage)
            entries = []
        return events

    def end(self, usage: Usage | None, receipt: dict[str, Any] | None = None) -> bytes:
        """The chunk with the finish reason."""
        return self._chunks.last(self.text.reason, usage, receipt)

    def _chunk(self, part: Part) -> bytes:
        """The chunk of a part and nothing else, the common case."""
        if isinstance(part, ContentPart):
            return self._chunks.text(part.text)
        delta = _delta(part, self.text)
        return self._chunks.delta(delta, None, None) if delta else b""


class WholeChoice:
    """Collects shown text until the choice has ended."""

    def __init__(self, text: AnswerText, shape: AnswerShape, *, with_logprobs: bool) -> None:
        self.text = text
        self._shape = shape
        self._with_logprobs = with_logprobs
        self._parts: list[str] = []

    def add(self, shown: str) -> None:
        self._parts.append(shown)

    def body(self) -> dict[str, Any]:
        """The choice's object, but its index."""
        assert self.text.finish_reason is not None
        entries = self.text.take_entries() if self._with_logprobs else None
        return self._shape.choice("".join(self._parts), entries, self.text.finish_reason)


class WholeParts:
    """Makes the message of all parts once the choice has ended."""

    def __init__(self, text: PartedText, shape: AnswerShape, *, with_logprobs: bool) -> None:
        self.text = text
        self._shape = shape
        self._with_logprobs = with_logprobs

    def add(self, shown: str) -> None:
        """Nothing: the parts wait in the text."""

    def body(self) -> dict[str, Any]:
        """The choice's object, but its index."""
        entries = self.text.take_entries() if self._with_logprobs else None
        parts = self.text.take_parts()
        content = "".join(part.text for part in parts if isinstance(part, ContentPart))
        choice = self._shape.choice(content, entries, self.text.reason)
        message = choice["message"]
        reasoning = "".join(part.text for part in parts if isinstance(part, ReasoningPart))
        if reasoning:
            message["reasoning_content"] = reasoning
        calls = [_call(start, parts, self.text) for start in parts if isinstance(start, CallStart)]
        if calls:
            message["content"] = content or None
            message["tool_calls"] = calls
        return choice


def streamed_choice(
    text: ChoiceText, chunks: ChunkWriter, *, with_logprobs: bool
) -> StreamedChoice | StreamedParts:
    if isinstance(text, PartedText):
        return StreamedParts(text, chunks, with_logprobs=with_logprobs)
    return StreamedChoice(text, chunks, with_logprobs=with_logprobs)


def whole_choice(
    text: ChoiceText, shape: AnswerShape, *, with_logprobs: bool
) -> WholeChoice | WholeParts:
    if isinstance(text, PartedText):
        return WholeParts(text, shape, with_logprobs=with_logprobs)
    return WholeChoice(text, shape, with_logprobs=with_logprobs)


def _delta(part: Part, text: PartedText) -> dict[str, Any]:
    """A part as a chat chunk has it; empty for one that has nothing to say."""
    match part:
        case ContentPart():
            return {"content": part.text}
        case ReasoningPart():
            return {"reasoning_content": part.text}
        case CallStart():
            return {"tool_calls": [{"index": part.index, **_opened(part, text, "")}]}
        case CallArguments():
            arguments = {"arguments": part.text}
            return {"tool_calls": [{"index": part.index, "function": arguments}]}
        case CallEnd():
            return {}


def _call(start: CallStart, parts: list[Part], text: PartedText) -> dict[str, Any]:
    arguments = "".join(
        part.text for part in parts if isinstance(part, CallArguments) and part.index == start.index
    )
    return _opened(start, text, arguments)


def _opened(start: CallStart, text: PartedText, arguments: str) -> dict[str, Any]:
    return {
        "id": text.call_id(start.index),
        "type": "function",
        "function": {"name": start.name, "arguments": arguments},
    }
