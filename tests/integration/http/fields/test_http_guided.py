"""Grammars by vLLM's and SGLang's names, through a real socket: each reaches the engine as the
grammar it means, and an engine that follows it writes just that; what we cannot do is named.

The failure guarded: a field that is accepted and dropped, so that an answer does not match.
"""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer

from shared.grammar import source
from shared.grammar.matcher import GrammarVocabulary
from tests.support.cases.http_bodies import CHAT, TEXT, chat_body, text_body
from tests.support.fakes.served_app import ServedApp

pytestmark = pytest.mark.anyio

CITY: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "format": "password"}},
    "required": ["city"],
    "additionalProperties": False,
}
GBNF = 'root ::= expr\nexpr ::= term ("+" term)*\nterm ::= [0-9]+ | "(" expr ")"'
LARK = 'start: greeting " " NAME\ngreeting: "hello" | "bye"\nNAME: /[a-z]+/'
PHONE = r"^\d{3}/\d{4}$"
FIELDS: dict[str, tuple[Any, str, str]] = {
    "guided_json": (CITY, '{"city": "Rome"}', '{"city": 5}'),
    "guided_regex": (PHONE, "555/1234", "555-1234"),
    "guided_choice": (["yes", 'no "way"\n'], 'no "way"\n', "perhaps"),
    "guided_grammar": (GBNF, "(1+22)+3", "1+"),
    "regex": (PHONE, "555/1234", "555/123"),
    "ebnf": (GBNF, "1+2", "a"),
}
"""field -> value, an answer that matches, one that does not"""
OUTPUTS: dict[str, tuple[Any, str, str]] = {
    "json": (json.dumps(CITY), '{"city": "Rome"}', "{}"),
    "regex": (PHONE, "555/1234", "x"),
    "choice": (["a", "b"], "b", "c"),
    "grammar": (LARK, "hello you", "hello"),
    "json_object": (True, '{"a": 1}', "[]"),
}
CASES = {
    **{name: ({name: value}, good, bad) for name, (value, good, bad) in FIELDS.items()},
    **{
        f"structured_outputs.{name}": ({"structured_outputs": {name: value}}, good, bad)
        for name, (value, good, bad) in OUTPUTS.items()
    },
}


@pytest.fixture(scope="module")
def vocabulary(text_directory: Path, tokenizer: Tokenizer) -> GrammarVocabulary:
    return GrammarVocabulary.load(text_directory, tokenizer.get_vocab_size(), (2,))


def matches(vocabulary: GrammarVocabulary, grammar: str, text: str) -> bool:
    matcher = vocabulary.compile(grammar)
    ids = vocabulary.encode(text)
    if matcher.num_accepted(ids) < len(ids):
        return False
    matcher.replay(ids)
    return matcher.is_complete


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("name", CASES)
async def test_the_engine_gets_the_grammar_it_means(
    app: ServedApp,
    client: httpx.AsyncClient,
    vocabulary: GrammarVocabulary,
    path: str,
    name: str,
) -> None:
    fields, good, bad = CASES[name]
    body = chat_body(**fields) if path == CHAT else text_body(**fields)
    response = await client.post(path, json=body)
    assert response.status_code == 200, response.text
    assert "x-baton-ignored" not in response.headers
    grammar = app.door.requests[-1].sampling.grammar
    assert matches(vocabulary, grammar, good)
    assert not matches(vocabulary, grammar, bad)


async def test_neutral_options_and_nulls(app: ServedApp, client: httpx.AsyncClient) -> None:
    outputs = {
        "choice": ["a"],
        "json": None,
        "structural_tag": None,
        "disable_fallback": True,
        "disable_any_whitespace": False,
        "whitespace_pattern": None,
    }
    for fields in ({"structured_outputs": outputs}, {"guided_choice": ["a"], "ebnf": None}):
        asked = chat_body(guided_decoding_backend="xgrammar", **fields)
        assert (await client.post(CHAT, json=asked)).status_code == 200
        assert app.door.requests[-1].sampling.grammar == source.choice(["a"])


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"guided_json": 5}, "guided_json"),
    ({"guided_json": "not JSON"}, "guided_json"),
    ({"guided_json": ""}, "guided_json"),
    ({"guided_json": '{"a":' * 40}, "guided_json"),
    ({"guided_regex": ""}, "guided_regex"),
    ({"guided_regex": "(a"}, "guided_regex"),
    ({"guided_regex": "a(?=b)"}, "guided_regex"),
    ({"guided_choice": []}, "guided_choice"),
    ({"guided_choice": ["a", 5]}, "guided_choice"),
    ({"guided_grammar": "neither of them"}, "guided_grammar"),
    ({"guided_grammar": "%llguidance {}\nstart: /a/"}, "guided_grammar"),
    ({"guided_grammar": "start: missing"}, "guided_grammar"),
    ({"ebnf": "root ::= " + "(" * 900}, "ebnf"),
    ({"ebnf": "r ::= 1\n" * 300}, "ebnf"),
    ({"structured_outputs": {}}, "structured_outputs"),
    ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
    ({"structured_outputs": {"regex": 5}}, "structured_outputs.regex"),
    (
        {"structured_outputs": {"choice": ["a"], "disable_any_whitespace": True}},
        "structured_outputs.disable_any_whitespace",
    ),
    ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag"),
    ({"regex": "a", "ebnf": GBNF}, "ebnf"),
    ({"regex": "a", "response_format": {"type": "json_object"}}, "regex"),
    ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern"),
    ({"structural_tag": "{}"}, "structural_tag"),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED)
async def test_row_79_what_we_cannot_follow_is_refused_by_name(
    app: ServedApp, client: httpx.AsyncClient, fields: dict[str, Any], param: str
) -> None:
    response = await client.post(CHAT, json=chat_body(**fields))
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert param in error["message"] and "\n" not in error["message"]
    assert app.door.requests == []


PLACES: dict[str, tuple[dict[str, Any], str]] = {
    "pattern": ({"type": "array", "items": {"pattern": "(a", "type": "string"}}, "/items"),
    "keyword": ({"anyOf": [{"type": "null"}, {"not": {}}]}, "/anyOf/1"),
    "bounds": ({"type": "integer", "minimum": 5, "maximum": 3}, ""),
    "repeat": ({"type": "string", "pattern": "(a+)+"}, ""),
    "empty": ({"type": "string", "format": "date", "pattern": "a"}, ""),
    "one-of": ({"oneOf": [{"type": "string"}, {"type": "string", "minLength": 3}]}, ""),
}


@pytest.mark.parametrize("name", PLACES)
async def test_a_refused_schema_s_error_names_the_place(
    client: httpx.AsyncClient, name: str
) -> None:
    """And shows nothing that its author never wrote."""
    inner, below = PLACES[name]
    schema = {"type": "object", "properties": {"a/b": inner}, "required": ["a/b"]}
    response = await client.post(CHAT, json=chat_body(guided_json=schema))
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["code"] == "invalid_schema"
    assert error["message"].startswith(f"guided_json: at #/properties/a~1b{below}: ")
    for word in ("Regex (", "SearchRegex", "And (", "coerce", "x-guidance", "json-schema:"):
        assert word not in error["message"]


@pytest.mark.parametrize(
    "notes",
    [
        {"format": "password"},
        {"format": "int32", "$schema": "my-own"},
        {"$schema": "https://example.com/schema", "title": "a", "x-note": [1], "readOnly": True},
    ],
)
async def test_annotations_in_schemas_are_ignored(
    app: ServedApp, client: httpx.AsyncClient, notes: dict[str, Any]
) -> None:
    inner = {"type": "string", **notes}
    schema = {**notes, "type": "object", "properties": {"format": inner}}
    response_format = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    response = await client.post(CHAT, json=chat_body(response_format=response_format))
    assert response.status_code == 200, response.text


async def test_a_format_that_can_be_enforced_is(
    app: ServedApp, client: httpx.AsyncClient, vocabulary: GrammarVocabulary
) -> None:
    schema = {"type": "string", "format": "date"}
    assert (await client.post(CHAT, json=chat_body(guided_json=schema))).status_code == 200
    grammar = app.door.requests[-1].sampling.grammar
    assert matches(vocabulary, grammar, '"2026-11-23"')
    assert not matches(vocabulary, grammar, '"tomorrow"')
