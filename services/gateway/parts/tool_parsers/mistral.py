"""Calls as Mistral's models write them, in the older form and the newer one:

[TOOL_CALLS] [{"name": "f", "arguments": {"x": 1}}, {"name": "g", "arguments": {}}]
[TOOL_CALLS]f[ARGS]{"x": 1}[TOOL_CALLS]g[ARGS]{}
"""

import re
from collections.abc import Sequence

from services.gateway.parts.part import Part
from services.gateway.parts.tool_parsers.call_readers import ArgumentsReader, ObjectReader
from services.gateway.parts.tool_parsers.call_text import CallText

TAG = "[TOOL_CALLS]"
ARGS = "[ARGS]"
CALL_ID = "[CALL_ID]"
MAX_NAME_CHARS = 256
"""between the tag and the arguments; more is no name"""
_NAMED = re.compile(r"\s*([a-zA-Z0-9_-]{1,64})(?:\[CALL_ID\][a-zA-Z0-9]*)?(?:\[ARGS\])?\s*")


class MistralParser:
    """A ToolParser."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names
        self._text = CallText()
        self._at_tag = False
        """the tag was read: a list or a name follows"""
        self._in_list = False
        self._opening = ""
        """tag and bracket, content if no call follows"""

    def push(self, text: str) -> Sequence[Part]:
        return self._text.read(text, self._step)

    def end(self) -> Sequence[Part]:
        if self._at_tag:
            self._text.unread = self._opening + self._text.unread
        elif self._in_list:
            self._text.unread = ""
        return self._text.end()

    def _step(self) -> bool:
        """Whether more can be read of the text that is there."""
        text = self._text
        if text.in_call:
            outcome = text.read_call()
            self._in_list = self._in_list and outcome != "none"
            return outcome != "unfinished"
        if self._at_tag:
            return self._read_form()
        if self._in_list:
            return self._read_separator()
        if not text.skip_past(TAG):
            return False
        self._at_tag, self._opening = True, TAG
        return True

    def _read_form(self) -> bool:
        """The bracket of a list, or a name."""
        text = self._text
        rest = text.unread.lstrip()
        if rest.startswith("["):
            self._at_tag, self._in_list = False, True
            opening = TAG + text.unread[: len(text.unread) - len(rest) + 1]
            text.unread = rest[1:]
            text.open_call(opening, ObjectReader(text.num_calls, self._names))
            return True
        end = text.unread.find("{", 0, MAX_NAME_CHARS)
        if end < 0 and len(text.unread) < MAX_NAME_CHARS:
            return False
        self._at_tag = False
        found = _NAMED.fullmatch(text.unread[: max(end, 0)])
        if found is None or found[1] not in self._names:
            text.add_content(TAG)
            return True
        text.unread = text.unread[end:]
        text.open_call(TAG, ArgumentsReader(text.num_calls, found[1]))
        return True

    def _read_separator(self) -> bool:
        """A comma and the next object, or the list's closing bracket."""
        text = self._text
        rest = text.unread.lstrip()
        if not rest:
            return False
        text.unread = rest[1:] if rest[0] in ",]" else rest
        self._in_list = rest[0] == ","
        if self._in_list:
            text.open_call(",", ObjectReader(text.num_calls, self._names))
        return True
