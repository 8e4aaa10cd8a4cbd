"""Reasoning: what a model writes between `<think>` and `</think>` before its answer."""

from collections.abc import Sequence
from typing import Literal

from services.gateway.parts.part import Part, ReasoningPart
from services.gateway.parts.tool_parsers.call_text import num_begun
from shared.text.reasoning import CLOSE, OPEN, ReasoningStart

_Stage = Literal["opening", "inside", "gap", "answer"]


class ReasoningText:
    """Splits text that grows into reasoning and the text behind it; white space next to the
    tags belongs to neither. However the text is cut, the joined parts are the same."""

    def __init__(self, start: ReasoningStart) -> None:
        self._start = start
        self._stage: _Stage = "answer" if start == "none" else "opening"
        self._unread = ""
        self._begun = False
        self.seen = start == "open"
        """some of the text so far was reasoning or its tags"""

    @property
    def over(self) -> bool:
        """What follows is the answer."""
        return self._stage in ("gap", "answer")

    def push(self, text: str) -> tuple[Sequence[Part], str]:
        """New reasoning, and new text of the answer."""
        self._unread += text
        if self._stage == "opening":
            self._read_opening()
        parts = self._read_inside() if self._stage == "inside" else []
        if self._stage == "gap":
            self._unread = self._unread.lstrip()
            self._stage = "answer" if self._unread else "gap"
        if self._stage != "answer":
            return parts, ""
        answer, self._unread = self._unread, ""
        return parts, answer

    def end(self) -> tuple[Sequence[Part], str]:
        """What was held back."""
        rest, self._unread = self._unread, ""
        if self._stage == "opening" and self._start == "possible":
            return (), rest
        kept = rest.rstrip() if self._begun else rest.strip()
        return ([ReasoningPart(kept)] if kept else []), ""

    def _read_opening(self) -> None:
        rest = self._unread.lstrip()
        if rest.startswith(OPEN):
            self._unread = rest.removeprefix(OPEN)
            self._stage, self.seen = "inside", True
        elif not OPEN.startswith(rest):
            self._stage = "inside" if self._start == "open" else "answer"

    def _read_inside(self) -> list[Part]:
        if not self._begun:
            self._unread = self._unread.lstrip()
        before, found, after = self._unread.partition(CLOSE)
        if not found:
            before = self._unread[: len(self._unread) - num_begun(self._unread, CLOSE)]
        kept = before.rstrip()
        self._unread = after if found else self._unread[len(kept) :]
        if found:
            self._stage = "gap"
        self._begun = self._begun or bool(kept)
        return [ReasoningPart(kept)] if kept else []
