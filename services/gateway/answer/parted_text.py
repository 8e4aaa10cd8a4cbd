"""The text of one answer split into its parts as its tokens arrive."""

from collections.abc import Iterator

from services.gateway.owner.generation import Delta
from services.gateway.parts.parser import AnswerForm, AnswerParser
from services.gateway.parts.part import ContentPart, Part, joined
from services.gateway.prompt.call_ids import call_id
from shared.protocol import FinishReason
from shared.text.answer_text import AnswerText, TokenEntry
from shared.text.ending import Ending


class PartedText:
    """An AnswerText whose text comes out as parts. It goes token by token, so what it finds
    does not depend on how tokens arrive together."""

    def __init__(self, text: AnswerText, form: AnswerForm, rid: str) -> None:
        """`rid`: of the choice; ids of calls are made from it."""
        self._text = text
        self._rid = rid
        self._family = form.family
        self._parser = AnswerParser(form)
        self._parts: list[Part] = []

    @property
    def num_tokens(self) -> int:
        return self._text.num_tokens

    @property
    def num_reasoning_tokens(self) -> int:
        return self._parser.num_reasoning_tokens

    @property
    def finish_reason(self) -> FinishReason | None:
        return "stop" if self._parser.complete else self._text.finish_reason

    @property
    def stopped(self) -> bool:
        """The text ended the answer; the generation may still be running."""
        return self._text.stopped or (self._parser.complete and self._text.finish_reason is None)

    @property
    def ending(self) -> Ending:
        """Why the answer ended."""
        assert self.finish_reason is not None
        reason = self._parser.reason(self.finish_reason)
        return Ending(reason, self._text.stop_reason, self._text.matched_stop)

    def push(self, delta: Delta) -> str:
        """Reads tokens. Nothing is shown as plain text: see `take_parts`."""
        for single in _by_token(delta):
            shown = self._text.push(single)
            self._parts += self._parser.push(shown, self._text.num_tokens)
            if self.finish_reason is not None:
                break
        if self.finish_reason is not None:
            self._parts += self._parser.end()
        return ""

    def take_parts(self) -> list[Part]:
        """The parts since the last call."""
        parts, self._parts = self._parts, []
        return parts

    def call_id(self, index: int) -> str:
        return call_id(self._rid, index, self._family)

    def take_entries(self) -> list[TokenEntry]:
        return self._text.take_entries()

    def take_ids(self) -> list[int] | None:
        return self._text.take_ids()


def taken_parts(text: AnswerText | PartedText, shown: str) -> list[Part]:
    """The parts that came with the last tokens; `shown` is their text where that is all."""
    if isinstance(text, PartedText):
        return joined(text.take_parts())
    return [ContentPart(shown)] if shown else []


def _by_token(delta: Delta) -> Iterator[Delta]:
    last = len(delta.token_ids) - 1
    if last < 1:
        yield delta
        return
    for at, token_id in enumerate(delta.token_ids):
        reason = delta.finish_reason if at == last else None
        yield Delta((token_id,), delta.logprobs[at : at + 1], reason)
