"""Reasoning: what a model writes between `<think>` and `</think>` before its answer.

Some chat templates open the block themselves at the end of the prompt; then the answer begins
inside it. Otherwise it is reasoning only if the answer begins with the tag.
"""

from collections.abc import Sequence
from typing import Literal

from services.gateway.parts.part import Part, ReasoningPart
from services.gateway.parts.tool_parsers.call_text import num_begun

OPEN = "<think>"
CLOSE = "</think>"
ReasoningStart = Literal["none", "possible", "open"]
"""of an answer: no reasoning, reasoning if it begins with the tag, or in it from the start"""
ReasoningName = Literal["none", "think"]
_Stage = Literal["opening", "inside", "gap", "answer"]


def choose_reasoning(
    setting: str, template_source: str, added_tokens: frozenset[str]
) -> ReasoningName:
    """What `--reasoning-parser` means for a model: "auto" looks at the template, then at the
    tokenizer."""
    if setting == "none":
        return "none"
    marked = CLOSE in template_source or {OPEN, CLOSE} <= added_tokens
    return "think" if setting == "think" or marked else "none"


def reasoning_start(prompt: str) -> ReasoningStart:
    """How the answer to a rendered prompt begins: a template that turns thinking off closes the
    reasoning before it."""
    prompt = prompt.rstrip()
    if prompt.endswith(CLOSE):
        return "none"
    return "open" if prompt.endswith(OPEN) else "possible"


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
