"""Grammars as text: what they accept, and what of a client's schema stays outside."""

import json
from pathlib import Path
from typing import Any

import pytest

from shared.errors import GrammarError
from shared.grammar import source
from shared.grammar.checker import check_grammar
from shared.grammar.matcher import GrammarVocabulary
from tests.support.cases.schemas import SCHEMAS, TREE, record, whole
from tests.support.models.text_models import END, byte_level_tokenizer, write_text_model


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> GrammarVocabulary:
    tokenizer = byte_level_tokenizer()
    directory = write_text_model(tmp_path_factory.mktemp("model"), tokenizer)
    return GrammarVocabulary.load(
        directory, tokenizer.get_vocab_size(), (tokenizer.token_to_id(END) or 0,)
    )


def accepts(vocabulary: GrammarVocabulary, grammar: str, text: str) -> bool:
    matcher = vocabulary.compile(grammar)
    token_ids = vocabulary.encode(text)
    if matcher.num_accepted(token_ids) < len(token_ids):
        return False
    matcher.replay(token_ids)
    return matcher.is_complete


@pytest.mark.parametrize("indent", [None, 1, 2, 4])
def test_the_usual_layouts_are_accepted(vocabulary: GrammarVocabulary, indent: int | None) -> None:
    value = {"v": 1, "kids": [{"v": 2, "kids": []}]}
    assert accepts(vocabulary, source.json_schema(TREE), json.dumps(value, indent=indent))
    compact = json.dumps(value, separators=(",", ":"))
    assert accepts(vocabulary, source.json_schema(TREE), compact)


def test_blanks_are_bounded(vocabulary: GrammarVocabulary) -> None:
    grammar = source.json_schema(record(a=whole(0, 9)))
    assert accepts(vocabulary, grammar, '{"a":\n' + " " * 16 + "1}")
    for blanks in ("\n" + " " * 17, "  ", "\n\n", "\t"):
        assert not accepts(vocabulary, grammar, f'{{"a":{blanks}1}}')


def test_an_object_is_any_object(vocabulary: GrammarVocabulary) -> None:
    assert accepts(vocabulary, source.json_object(), '{"a": [1, {"b": null}], "ü": "x"}')
    for other in ("[]", "1", '"x"', '{"a": 1', "{'a': 1}"):
        assert not accepts(vocabulary, source.json_object(), other)


@pytest.mark.parametrize("text", ["plain", 'a"b', "back\\slash", "a\nb\t\x01", "é🙂/", "<tool>"])
def test_a_literal_is_its_text(vocabulary: GrammarVocabulary, text: str) -> None:
    grammar = f"start: {source.literal(text)}"
    assert accepts(vocabulary, grammar, text)
    assert not accepts(vocabulary, grammar, text + "x")


def test_true_is_anything_and_false_is_nothing(vocabulary: GrammarVocabulary) -> None:
    assert accepts(vocabulary, source.json_schema(True), '[1, "x"]')
    with pytest.raises(GrammarError):
        vocabulary.compile(source.json_schema(False))


def test_a_clients_compiler_options_are_dropped(vocabulary: GrammarVocabulary) -> None:
    lenient = {"type": "array", "uniqueItems": True, "x-guidance": {"lenient": True}}
    with pytest.raises(GrammarError, match="uniqueItems"):
        vocabulary.compile(source.json_schema(lenient))


@pytest.mark.parametrize("name", SCHEMAS)
def test_schemas_of_every_day_pass(vocabulary: GrammarVocabulary, name: str) -> None:
    check_grammar(vocabulary, source.json_schema(SCHEMAS[name]))


def test_several_terms_in_one_grammar_are_all_checked(vocabulary: GrammarVocabulary) -> None:
    good = source.json_term(record(a=whole(0, 9)))
    endless: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"$ref": "#"}}
    check_grammar(vocabulary, f'start: "<a>" {good} "</a>" | {good}')
    with pytest.raises(GrammarError, match="finite"):
        check_grammar(vocabulary, f"start: {good} | {source.json_term(endless)}")


def test_a_checkpoint_without_a_tokenizer_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(GrammarError, match=r"tokenizer\.json"):
        GrammarVocabulary.load(tmp_path, 10, (1,))
