"""One choice of an answer: the place where its text becomes JSON, streamed or whole.

The plain classes are for text that is all content; the parted ones for text with reasoning or
tool calls in it.
"""

from typing import Any, Generic, TypeVar

from services.gateway.answer.parted_text import PartedText
from services.gateway.answer.shape import AnswerShape
from services.gateway.answer.sse import ChunkWriter
from services.gateway.parts.part import (
    CallArguments,
    CallEnd,
    CallStart,
    ContentPart,
    Part,
    ReasoningPart,
    joined,
)
from shared.text.answer_text import AnswerText, TokenEntry

Usage = dict[str, Any]
Receipt = dict[str, Any]
ChoiceText = AnswerText | PartedText
Text = TypeVar("Text", AnswerText, PartedText)


class _Streamed(Generic[Text]):
    """What becomes the chunks of one index."""

    def __init__(self, text: Text, chunks: ChunkWriter, *, with_logprobs: bool) -> None:
        self.text: Text = text
        self._chunks = chunks
        self._with_logprobs = with_logprobs
        self._opened = False

    def opening(self, usage: Usage | None) -> bytes:
        """The chunk that comes before the first token, once."""
        opened, self._opened = self._opened, True
        return b"" if opened else self._chunks.first(usage)


class StreamedChoice(_Streamed[AnswerText]):
    """Turns shown text into chunks."""

    def plain(self, shown: str) -> bytes:
        """What `events` gives for text in the middle of an answer and nothing else: the common
        case, once per token."""
        if not self._opened:
            return self.events(shown, None)
        return self._chunks.text(shown) if shown else b""

    def events(self, shown: str, usage: Usage | None) -> bytes:
        """The chunks that this text causes. `usage`: so far, where every chunk carries it; without
        it there is none while all text is held back."""
        opening = self.opening(usage)
        entries = self.text.take_entries()
        if not shown and not entries and usage is None:
            return opening
        wanted = entries if self._with_logprobs else None
        ids = self.text.take_ids()
        return opening + self._chunks.piece(shown, wanted, usage, token_ids=ids)

    def last(self, shown: str, usage: Usage | None, receipt: Receipt | None = None) -> bytes:
        """The choice's last text with its finish reason."""
        opening = self.opening(usage)
        entries = self.text.take_entries()
        return opening + self._chunks.piece(
            shown if shown or entries else self._chunks.nothing,
            entries or None,
            usage,
            token_ids=self.text.take_ids(),
            ending=self.text.ending,
            receipt=receipt,
        )


class StreamedParts(_Streamed[PartedText]):
    """Turns parts into chunks; `shown` is always empty here."""

    def plain(self, shown: str) -> bytes:
        events = self.opening(None)
        return events + b"".join(map(self._chunk, joined(self.text.take_parts())))

    def events(self, shown: str, usage: Usage | None) -> bytes:
        """The chunks of the parts that came, one at the least where it carries the usage. The
        first one has the log-probabilities and the tokens of all."""
        events = self.opening(usage)
        entries = self.text.take_entries()
        deltas = self._deltas() or [{}] * bool(entries or usage)
        if not deltas:
            return events
        ids = self.text.take_ids()
        for delta in deltas:
            wanted = entries if self._with_logprobs and entries else None
            events += self._chunks.piece(delta, wanted, usage, token_ids=ids)
            entries, ids = [], None
        return events

    def last(self, shown: str, usage: Usage | None, receipt: Receipt | None = None) -> bytes:
        """The chunks of the last parts, the last of them with the finish reason."""
        events = self.opening(usage)
        entries: list[TokenEntry] | None = self.text.take_entries() or None
        ids = self.text.take_ids()
        *before, last = self._deltas() or [{}]
        for delta in before:
            events += self._chunks.piece(delta, entries, usage, token_ids=ids)
            entries = ids = None
        ending = self.text.ending
        return events + self._chunks.piece(
            last, entries, usage, token_ids=ids, ending=ending, receipt=receipt
        )

    def _deltas(self) -> list[dict[str, Any]]:
        deltas = [_delta(part, self.text) for part in joined(self.text.take_parts())]
        return [delta for delta in deltas if delta]

    def _chunk(self, part: Part) -> bytes:
        """The chunk of a part and nothing else, the common case."""
        if isinstance(part, ContentPart):
            return self._chunks.text(part.text)
        delta = _delta(part, self.text)
        return self._chunks.piece(delta, None, None) if delta else b""


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
        entries = self.text.take_entries() if self._with_logprobs else None
        choice = self._shape.choice("".join(self._parts), entries, self.text.ending)
        return _with_ids(choice, self.text)


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
        choice = self._shape.choice(content, entries, self.text.ending)
        message = choice["message"]
        reasoning = "".join(part.text for part in parts if isinstance(part, ReasoningPart))
        if reasoning:
            message["reasoning_content"] = reasoning
        calls = [_call(start, parts, self.text) for start in parts if isinstance(start, CallStart)]
        if calls:
            message["content"] = content or None
            message["tool_calls"] = calls
        return _with_ids(choice, self.text)


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


def _with_ids(choice: dict[str, Any], text: ChoiceText) -> dict[str, Any]:
    ids = text.take_ids()
    return choice if ids is None else {**choice, "token_ids": ids}


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
