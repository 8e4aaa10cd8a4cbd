"""One answer's text, split into reasoning, content and tool calls as it grows."""

from collections.abc import Sequence
from dataclasses import dataclass

from services.gateway.parts.families import FamilyName, tool_parser
from services.gateway.parts.part import CallEnd, CallStart, ContentPart, Part
from services.gateway.parts.reasoning import ReasoningText
from shared.protocol import FinishReason
from shared.text.ending import AnswerReason
from shared.text.reasoning import ReasoningStart


@dataclass(frozen=True)
class AnswerForm:
    """What to look for in an answer's text."""

    family: FamilyName = "none"
    functions: tuple[str, ...] = ()
    """names that a call may have; none asks for no calls"""
    one_call: bool = False
    """the answer ends with its first call"""
    reasoning: ReasoningStart = "none"
    visible_ids: tuple[int, ...] = ()
    """special tokens that stay in the text for the parser to see"""

    @property
    def plain(self) -> bool:
        """All of the text is content."""
        return not self.functions and self.reasoning == "none"


PLAIN = AnswerForm()
"""all of the text is content"""


class AnswerParser:
    """Feed it text token by token, so that reasoning can be counted in tokens."""

    def __init__(self, form: AnswerForm) -> None:
        self._form = form
        self._reasoning = ReasoningText(form.reasoning)
        self._tools = (
            tool_parser(form.family, frozenset(form.functions)) if form.functions else None
        )
        self.num_reasoning_tokens = 0
        self.num_calls = 0
        self.complete = False
        """nothing more is wanted; the generation may still be running"""

    def push(self, text: str, num_tokens: int) -> list[Part]:
        """The parts that are certain now. `num_tokens` of the answer so far, these included."""
        was_over = self._reasoning.over
        reasoning, answer = self._reasoning.push(text)
        if self._reasoning.seen and not was_over:
            self.num_reasoning_tokens = num_tokens
        return [*reasoning, *self._wanted(self._parts_of(answer))]

    def end(self) -> list[Part]:
        """What was held back, once the answer has ended."""
        if self.complete:
            return []
        reasoning, answer = self._reasoning.end()
        parts = self._wanted(self._parts_of(answer))
        if self._tools is not None and not self.complete:
            parts += self._wanted(self._tools.end())
        return [*reasoning, *parts]

    def reason(self, reason: FinishReason) -> AnswerReason:
        """Why the answer ended, as the API says it."""
        return "tool_calls" if self.num_calls and reason == "stop" else reason

    def _parts_of(self, answer: str) -> Sequence[Part]:
        if self._tools is not None:
            return self._tools.push(answer)
        return [ContentPart(answer)] if answer else []

    def _wanted(self, parts: Sequence[Part]) -> list[Part]:
        """The parts up to the end of the only call, if one is all that is wanted."""
        kept: list[Part] = []
        for part in parts:
            if self.complete:
                break
            kept.append(part)
            self.num_calls += isinstance(part, CallStart)
            self.complete = self._form.one_call and isinstance(part, CallEnd)
        return kept
