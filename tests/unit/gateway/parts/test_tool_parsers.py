"""Parsers of tool calls: what each family writes becomes calls, everything else stays content,
and where the text is cut into pieces changes nothing."""

import json
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.gateway.parts.families import FamilyName, tool_parser
from services.gateway.parts.part import CallArguments, CallStart, ContentPart, Part, joined
from services.gateway.parts.tool_parsers import call_text

FUNCTIONS = frozenset({"f", "get-weather"})
FAMILIES: tuple[FamilyName, ...] = ("hermes", "llama", "mistral")
Said = tuple[str, list[tuple[str, str]]]
"""content, and (name, arguments) of each call"""


def parts_of(family: FamilyName, pieces: Sequence[str]) -> list[Part]:
    parser = tool_parser(family, FUNCTIONS)
    assert parser is not None
    parts = [part for piece in pieces for part in parser.push(piece)]
    return joined([*parts, *parser.end()])


def said(parts: Sequence[Part]) -> Said:
    content = "".join(part.text for part in parts if isinstance(part, ContentPart))
    calls: list[tuple[str, str]] = []
    for part in parts:
        if isinstance(part, CallStart):
            assert part.index == len(calls)
            calls.append((part.name, ""))
        elif isinstance(part, CallArguments):
            assert part.index == len(calls) - 1
            calls[-1] = (calls[-1][0], calls[-1][1] + part.text)
    return content, calls


F = '{"name": "f", "arguments": {"x": "}<[\\"{"}}'
F_ARGUMENTS = '{"x": "}<[\\"{"}'
UNDERSTOOD: list[tuple[FamilyName, str, Said]] = [
    ("hermes", "no call at all\n", ("no call at all\n", [])),
    ("hermes", f"<tool_call>\n{F}\n</tool_call>", ("", [("f", F_ARGUMENTS)])),
    ("hermes", f"Well. \n<tool_call>{F}</tool_call>\n", ("Well.", [("f", F_ARGUMENTS)])),
    (
        "hermes",
        f"a\n<tool_call>\n{F}\n</tool_call>\n<tool_call>\n{F}\n</tool_call>\nb\n",
        ("ab\n", [("f", F_ARGUMENTS)] * 2),
    ),
    ("hermes", f"<tool_call>{F}<tool_call>{F}", ("", [("f", F_ARGUMENTS)] * 2)),
    (
        "hermes",
        '<tool_call>{"arguments": {"a": [1]}, "name": "get-weather"}</tool_call>',
        ("", [("get-weather", '{"a": [1]}')]),
    ),
    ("hermes", '<tool_call>{"name": "f"}</tool_call>', ("", [("f", "{}")])),
    (
        "hermes",
        '<tool_call>{"name": "f", "arguments": "{\\"x\\": 1}"}</tool_call>',
        ("", [("f", '{"x": 1}')]),
    ),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"x": [1, 2', ("", [("f", '{"x": [1, 2')])),
    ("hermes", f"<tool_call>{F}</tool", ("", [("f", F_ARGUMENTS)])),
    ("llama", '{"name": "f", "parameters": {"x": 1}}', ("", [("f", '{"x": 1}')])),
    (
        "llama",
        '\n{"type": "function", "name": "f", "parameters": {}};\n{"name": "f", "parameters": {}}',
        ("", [("f", "{}")] * 2),
    ),
    ("llama", 'See: <|python_tag|>{"name": "f", "parameters": {}}', ("See:", [("f", "{}")])),
    ("llama", '{"name": "f", "parameters": {}} done', ("done", [("f", "{}")])),
    (
        "mistral",
        f'[TOOL_CALLS] [{F}, {{"name": "f", "arguments": {{}}, "id": "abcdefghi"}}]',
        ("", [("f", F_ARGUMENTS), ("f", "{}")]),
    ),
    (
        "mistral",
        'Hm. [TOOL_CALLS]f[ARGS]{"x": 1}[TOOL_CALLS]get-weather[CALL_ID]abc[ARGS]{}',
        ("Hm.", [("f", '{"x": 1}'), ("get-weather", "{}")]),
    ),
    ("mistral", '[TOOL_CALLS]f{"x": 1}', ("", [("f", '{"x": 1}')])),
]
CONTENT = [
    *(("hermes", text) for text in ("<", "a <tool", "<tool_call>", "<tool_call>\n{", "x\n\n")),
    ("hermes", '<tool_call>{"name": "other", "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f", "arguments": 5}</tool_call> b'),
    ("hermes", '<tool_call>{"name": "f" "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>["f"]</tool_call>'),
    ("hermes", '<tool_call>{"f": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": ["f"], "arguments": {}}</tool_call>'),
    ("hermes", '{"name": "f", "arguments": {}}'),
    ("llama", '{"a": 1}'),
    ("llama", ' {"name": "Bob", "parameters": {}}'),
    ("llama", 'so: {"name": "f", "parameters": {}}'),
    ("llama", "<|python_tag|>print(1)"),
    ("llama", '{"name": "f", "param'),
    ("mistral", "[TOOL_CALLS]"),
    ("mistral", "[TOOL_CALLS]no such{}"),
    ("mistral", "[TOOL_CALLS]" + "f" * 300),
    ("mistral", "[TOOL_CALLS] [1]"),
]


@pytest.mark.parametrize(("family", "text", "expected"), UNDERSTOOD)
def test_calls_are_understood(family: FamilyName, text: str, expected: Said) -> None:
    assert said(parts_of(family, [text])) == expected


@pytest.mark.parametrize(("family", "text"), CONTENT)
def test_what_is_no_call_stays_content_to_the_letter(family: FamilyName, text: str) -> None:
    assert parts_of(family, [text]) == [ContentPart(text)]


def test_one_malformed_call_does_not_hide_the_next() -> None:
    broken = '<tool_call>{"name": "f", ]</tool_call>'
    content, calls = said(parts_of("hermes", [f"{broken}<tool_call>{F}</tool_call>"]))
    assert content == broken
    assert calls == [("f", F_ARGUMENTS)]


def test_arguments_are_passed_on_while_they_come() -> None:
    parser = tool_parser("hermes", FUNCTIONS)
    assert parser is not None
    assert not parser.push('<tool_call>\n{"name": "f", "argu')
    assert parser.push('ments": {"a"') == [
        CallStart(0, "f"),
        CallArguments(0, "{"),
        CallArguments(0, '"a"'),
    ]
    assert parser.push(": 1") == [CallArguments(0, ": 1")]


FRAGMENTS = [
    *("<tool_call>", "</tool_call>", "<tool_", "<|python_tag|>", "<|python", "[TOOL_CALLS]"),
    *("[ARGS]", "[CALL_ID]a", "[TOOL", "[", "]", ", ", ";", "{", "}", "\n", " ", "f", "text", "<"),
    *('{"name": "f", "arguments": {', '"x": 1', "}}", '{"name": "f", "parameters": {}}'),
    *('{"name": "no", "arguments": {}}', '"name"', ": ", '"\\""', '"é}{"', F),
    *('{"arguments": {}, "name": "f"}', '{"name": "f"}'),
]
TEXTS = st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join)


@pytest.mark.parametrize("family", FAMILIES)
@given(text=TEXTS, cuts=st.lists(st.integers(0, 200), max_size=20))
@settings(max_examples=300)
def test_the_cuts_between_pieces_change_nothing(
    family: FamilyName, text: str, cuts: list[int]
) -> None:
    whole = parts_of(family, [text])
    assert parts_of(family, list(text)) == whole
    edges = [0, *sorted(cuts), len(text)]
    pieces = [text[start:end] for start, end in pairwise(edges)]
    assert parts_of(family, pieces) == whole


@pytest.mark.parametrize("family", FAMILIES)
@given(text=TEXTS)
@settings(max_examples=200)
def test_without_a_call_nothing_is_lost(family: FamilyName, text: str) -> None:
    content, calls = said(parts_of(family, [text]))
    assert calls or content == text
    assert all(json.loads(arguments) is not None for _, arguments in calls if arguments == "{}")


def test_a_parser_that_holds_nothing_back_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_text, "num_begun", lambda text, tag: 0)
    text = f"a <tool_call>{F}</tool_call>"
    assert parts_of("hermes", list(text)) != parts_of("hermes", [text])
