"""Reasoning apart from the answer, however the text is cut, and counted in tokens."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.gateway.parts.parser import AnswerForm, AnswerParser
from services.gateway.parts.part import CallEnd, CallStart, ContentPart, ReasoningPart, joined
from shared.text.reasoning import ReasoningStart


def split(start: ReasoningStart, pieces: Sequence[str]) -> tuple[str, str]:
    """Reasoning and content."""
    parser = AnswerParser(AnswerForm(reasoning=start))
    parts = [part for at, piece in enumerate(pieces) for part in parser.push(piece, at + 1)]
    made = joined([*parts, *parser.end()])
    reasoning = "".join(part.text for part in made if isinstance(part, ReasoningPart))
    return reasoning, "".join(part.text for part in made if isinstance(part, ContentPart))


CASES: list[tuple[ReasoningStart, str, tuple[str, str]]] = [
    ("possible", "<think>\nhm, 1 < 2\n\n</think>\n\nYes.\n", ("hm, 1 < 2", "Yes.\n")),
    ("possible", "\n Yes <think>", ("", "\n Yes <think>")),
    ("possible", "<think></think>Yes", ("", "Yes")),
    ("possible", "<think>cut </thi", ("cut </thi", "")),
    ("possible", "<thi", ("", "<thi")),
    ("open", "\nhm\n</think>\n\nYes", ("hm", "Yes")),
    ("open", "<think>hm</think>Yes </think>", ("hm", "Yes </think>")),
    ("open", " never closed\n", ("never closed", "")),
    ("none", "<think>hm</think>", ("", "<think>hm</think>")),
]


@pytest.mark.parametrize(("start", "text", "expected"), CASES)
def test_reasoning_and_answer(start: ReasoningStart, text: str, expected: tuple[str, str]) -> None:
    assert split(start, [text]) == expected
    assert split(start, list(text)) == expected


FRAGMENTS = ["<think>", "</think>", "<", "</th", " ", "\n", "hm", "ink>", "é"]


@pytest.mark.parametrize("start", ["possible", "open"])
@given(pieces=st.lists(st.sampled_from(FRAGMENTS), max_size=12))
@settings(max_examples=200)
def test_cuts_change_nothing(start: ReasoningStart, pieces: list[str]) -> None:
    text = "".join(pieces)
    assert split(start, pieces) == split(start, [text]) == split(start, list(text))


def test_reasoning_is_counted_in_tokens_with_its_tags() -> None:
    parser = AnswerParser(AnswerForm(reasoning="possible"))
    for at, piece in enumerate(["<think>", "a", "b", "</think>", "\n", "Yes"]):
        parser.push(piece, at + 1)
    assert parser.num_reasoning_tokens == 4
    plain = AnswerParser(AnswerForm(reasoning="possible"))
    plain.push("Yes", 1)
    assert plain.num_reasoning_tokens == 0


def test_a_call_in_the_reasoning_is_none() -> None:
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    form = AnswerForm(family="hermes", functions=("f",), reasoning="open", one_call=True)
    parser = AnswerParser(form)
    parts = parser.push(f"maybe {call}</think>{call}{call} and text", 9)
    assert joined(parts)[0] == ReasoningPart(f"maybe {call}")
    assert [type(part) for part in parts[1:] if not hasattr(part, "text")] == [CallStart, CallEnd]
    assert parser.complete
    assert parser.end() == []
    assert parser.reason("stop") == "tool_calls"
    assert parser.reason("length") == "length"
