"""Calls as Hermes, Qwen2.5 and Qwen3 write them, each between its own pair of tags:

<tool_call>
{"name": "f", "arguments": {"x": 1}}
</tool_call>
"""

from collections.abc import Sequence

from services.gateway.parts.part import Part
from services.gateway.parts.tool_parsers.call_readers import ObjectReader
from services.gateway.parts.tool_parsers.call_text import CallText

OPEN = "<tool_call>"
CLOSE = "</tool_call>"


class HermesParser:
    """A ToolParser. A closing tag that is missing is not missed."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names
        self._text = CallText()
        self._closing = False
        """a call has ended, its closing tag may follow"""

    def push(self, text: str) -> Sequence[Part]:
        return self._text.read(text, self._step)

    def end(self) -> Sequence[Part]:
        if self._closing:
            self._text.unread = ""
        return self._text.end()

    def _step(self) -> bool:
        """Whether more can be read of the text that is there."""
        text = self._text
        if text.in_call:
            outcome = text.read_call()
            self._closing = outcome == "ended"
            return outcome != "unfinished"
        if self._closing:
            return self._skip_closing()
        if not text.skip_past(OPEN):
            return False
        text.open_call(OPEN, ObjectReader(text.num_calls, self._names))
        return True

    def _skip_closing(self) -> bool:
        rest = self._text.unread.lstrip()
        if CLOSE.startswith(rest) and rest != CLOSE:
            self._text.unread = rest
            return False
        self._text.unread = rest.removeprefix(CLOSE)
        self._closing = False
        return True
