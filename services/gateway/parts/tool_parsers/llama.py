"""Calls as Llama 3.1 and 3.2 write them: the answer is the call, or a special token says so.

{"name": "f", "parameters": {"x": 1}}
<|python_tag|>{"name": "f", "parameters": {"x": 1}}; {"name": "g", "parameters": {}}
"""

from collections.abc import Sequence

from services.gateway.parts.part import Part
from services.gateway.parts.tool_parsers.call_readers import ObjectReader
from services.gateway.parts.tool_parsers.call_text import CallText

TAG = "<|python_tag|>"
BETWEEN = "; \t\r\n"


class LlamaParser:
    """A ToolParser. Without the tag only what the answer begins with can be a call, and what
    follows one directly."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names
        self._text = CallText()
        self._may_begin = True
        """the next character may begin a call without the tag"""

    def push(self, text: str) -> Sequence[Part]:
        return self._text.read(text, self._step)

    def end(self) -> Sequence[Part]:
        return self._text.end()

    def _step(self) -> bool:
        """Whether more can be read of the text that is there."""
        text = self._text
        if text.in_call:
            outcome = text.read_call()
            self._may_begin = outcome == "ended"
            return outcome != "unfinished"
        if self._may_begin:
            return self._begin()
        if not text.skip_past(TAG):
            return False
        self._open(TAG)
        return True

    def _begin(self) -> bool:
        text = self._text
        gap = BETWEEN if text.num_calls else BETWEEN[1:]
        rest = text.unread.lstrip(gap)
        if not rest or (TAG.startswith(rest) and rest != TAG):
            return False
        opening = text.unread[: len(text.unread) - len(rest)]
        if rest.startswith(TAG):
            opening += TAG
        elif not rest.startswith("{"):
            self._may_begin = False
            return True
        text.unread = text.unread[len(opening) :]
        self._open(opening)
        return True

    def _open(self, opening: str) -> None:
        self._text.open_call(opening, ObjectReader(self._text.num_calls, self._names))
