"""What the parsers of all families share: text not yet understood, content, the open call."""

from collections.abc import Callable
from typing import Literal

from services.gateway.parts.part import ContentPart, Part
from services.gateway.parts.tool_parsers.call_readers import CallReader

CallOutcome = Literal["unfinished", "ended", "none"]
"""of reading on in what may be a call: "none" if it is no call"""


class CallText:
    """A parser's state. White space next to a call is not content; text that was taken for a
    call and is none becomes content again, with its tags."""

    def __init__(self) -> None:
        self.unread = ""
        self.num_calls = 0
        self._parts: list[Part] = []
        self._call: CallReader | None = None
        self._opening = ""
        """what was read to get to the call, content if it is none"""
        self._held = ""
        """white space that is content only if content follows"""
        self._after_call = False

    @property
    def in_call(self) -> bool:
        return self._call is not None

    def read(self, text: str, step: Callable[[], bool]) -> list[Part]:
        """The parts that this text completes; `step` reads on and says whether it got further."""
        self.unread += text
        while step():
            pass
        return self.take_parts()

    def take_parts(self) -> list[Part]:
        parts, self._parts = self._parts, []
        return parts

    def add_content(self, text: str) -> None:
        if self._after_call:
            text = text.lstrip()
            self._after_call = not text
        text = self._held + text
        kept = text.rstrip()
        self._held = text[len(kept) :]
        if kept:
            self._parts.append(ContentPart(kept))

    def skip_past(self, tag: str) -> bool:
        """Reads content up to a tag and the tag itself. False if it is not there yet: then what
        may be its beginning stays unread."""
        before, found, after = self.unread.partition(tag)
        if found:
            self.add_content(before)
            self.unread = after
            return True
        size = num_begun(self.unread, tag)
        end = len(self.unread) - size
        self.add_content(self.unread[:end])
        self.unread = self.unread[end:]
        return False

    def open_call(self, opening: str, call: CallReader) -> None:
        self._opening = opening
        self._call = call

    def read_call(self) -> CallOutcome:
        """Reads on in the open call."""
        call = self._call
        assert call is not None
        began_before = call.begun
        parts, self.unread = call.push(self.unread)
        if call.begun and not began_before:
            self.num_calls += 1
            self._held, self._after_call = "", True
        self._parts += parts
        if call.broken:
            self._give_up()
            return "none"
        if call.ended:
            self._call = None
            return "ended"
        return "unfinished"

    def end(self) -> list[Part]:
        """Everything still held is content; a call that was cut stays as far as it came."""
        if self._call is not None and not self._call.begun:
            self._give_up()
        self.add_content(self.unread)
        self.unread = ""
        if self._held:
            self._parts.append(ContentPart(self._held))
            self._held = ""
        return self.take_parts()

    def _give_up(self) -> None:
        assert self._call is not None
        raw, self._call = self._opening + self._call.raw, None
        self.add_content(raw)


def num_begun(text: str, tag: str) -> int:
    """Characters at the end of `text` that may be the beginning of `tag`."""
    at = text.find(tag[0], max(0, len(text) - len(tag) + 1))
    while at >= 0 and not tag.startswith(text[at:]):
        at = text.find(tag[0], at + 1)
    return len(text) - at if at >= 0 else 0
