"""A matcher: what is allowed, what is undone, how it fails."""

import sys
from pathlib import Path

import pytest

from shared.errors import GrammarError, MissingError
from shared.grammar.matcher import GrammarVocabulary, Matcher
from tests.support.models.text_models import END, byte_level_tokenizer, write_text_model


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text_model(tmp_path_factory.mktemp("model"))


VOCAB_SIZE = byte_level_tokenizer().get_vocab_size()
EOS = byte_level_tokenizer().token_to_id(END) or 0


@pytest.fixture(scope="module")
def vocabulary(directory: Path) -> GrammarVocabulary:
    return GrammarVocabulary.load(directory, VOCAB_SIZE, (EOS,))


def allowed(matcher: Matcher) -> set[int]:
    bits = matcher.allowed()
    return {at for at in range(8 * len(bits)) if bits[at // 8] >> at % 8 & 1}


def test_eos_is_allowed_exactly_where_the_output_is_complete(vocabulary: GrammarVocabulary) -> None:
    (letter,) = vocabulary.encode("z")
    matcher = vocabulary.compile('start: "z"{2,3}')
    seen = []
    for _ in range(3):
        seen.append((EOS in allowed(matcher), matcher.is_complete, matcher.is_stopped))
        matcher.accept(letter)
    assert seen == [(False, False, False), (False, False, False), (True, True, False)]
    assert allowed(matcher) == {EOS} and matcher.is_stopped


def test_padding_of_the_vocabulary_is_never_allowed(directory: Path) -> None:
    matcher = GrammarVocabulary.load(directory, VOCAB_SIZE + 70, (EOS,)).compile("start: /.*/")
    assert len(matcher.allowed()) * 8 >= VOCAB_SIZE + 70
    assert max(allowed(matcher)) < VOCAB_SIZE


def test_special_tokens_are_no_text(vocabulary: GrammarVocabulary) -> None:
    special = {0, 1, 2}
    assert allowed(vocabulary.compile("start: /.+/")) & special == set()
    assert allowed(vocabulary.compile("start: <|im_start|>")) == {1}


def test_a_model_without_endings_is_never_offered_one(directory: Path) -> None:
    vocabulary = GrammarVocabulary.load(directory, VOCAB_SIZE, ())
    matcher = vocabulary.compile('start: "z"*')
    assert allowed(matcher) & {0, 1, 2} == set() and matcher.is_complete


def test_copies_go_their_own_ways(vocabulary: GrammarVocabulary) -> None:
    matcher = vocabulary.compile('start: "yes" | "no"')
    other = matcher.copy()
    matcher.replay(vocabulary.encode("yes"))
    assert matcher.is_stopped and not other.is_complete
    other.replay(vocabulary.encode("no"))
    assert other.is_stopped


def test_tokens_can_be_tried_and_taken_back(vocabulary: GrammarVocabulary) -> None:
    """As a draft of several tokens needs it."""
    matcher = vocabulary.compile('start: "yes" | "no"')
    draft = [*vocabulary.encode("yes"), *vocabulary.encode("no")]
    before = allowed(matcher)
    num_good = matcher.num_accepted(draft)
    assert num_good == len(vocabulary.encode("yes")) and allowed(matcher) == before
    matcher.replay(draft[:num_good])
    matcher.rollback(num_good)
    assert allowed(matcher) == before


def test_a_token_outside_the_grammar_is_an_error_that_stays(vocabulary: GrammarVocabulary) -> None:
    matcher = vocabulary.compile('start: "yes"')
    (wrong,) = vocabulary.encode("z")
    for token in (wrong, *vocabulary.encode("yes")):
        with pytest.raises(GrammarError, match=r"cannot go on by its grammar \(\w+\)$"):
            matcher.accept(token)


@pytest.mark.parametrize(
    ("grammar", "problem"),
    [
        ("start: nowhere", "unknown name"),
        ("start: /(/", "regex parse error"),
        ('start: start "a"', "no output matches"),
        ('start: %json {"type": "string", "minLength": 5, "maxLength": 2}', "minLength"),
        ("", "Empty grammar"),
    ],
)
def test_a_wrong_grammar_says_why(
    vocabulary: GrammarVocabulary, grammar: str, problem: str
) -> None:
    with pytest.raises(GrammarError, match=problem) as caught:
        vocabulary.compile(grammar)
    assert str(caught.value).isprintable() and "at 1(" not in str(caught.value)


def test_without_the_library_the_cure_is_named(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(MissingError, match="pip install llguidance"):
        GrammarVocabulary.load(directory, VOCAB_SIZE, (EOS,))


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ('{"not": {}}', 'the schema uses "not", which cannot be enforced; leave it out'),
        (
            '{"not": {}, "uniqueItems": true}',
            'the schema uses "not", "uniqueItems", which cannot be enforced; leave them out',
        ),
    ],
)
def test_keys_that_cannot_be_enforced_are_named_in_plain_words(
    vocabulary: GrammarVocabulary, schema: str, told: str
) -> None:
    with pytest.raises(GrammarError) as refused:
        vocabulary.compile(f"start: %json {schema}")
    assert str(refused.value) == told
