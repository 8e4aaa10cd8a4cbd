"""The tokenizer's edges: BOS once, special names as text, and the bound on token counts."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, normalizers, pre_tokenizers

from shared.errors import ModelError
from shared.text.tokenizer import TextTokenizer
from tests.support.models.text_models import (
    BOS,
    END,
    byte_level_tokenizer,
    metaspace_tokenizer,
    sentencepiece_tokenizer,
)

BYTE_LEVEL = TextTokenizer(byte_level_tokenizer())
SENTENCEPIECE = TextTokenizer(sentencepiece_tokenizer())


def test_bos_is_added_once() -> None:
    added = SENTENCEPIECE.encode_prompt("the")
    written = SENTENCEPIECE.encode_prompt(f"{BOS}the")
    assert added[0] == written[0] == SENTENCEPIECE.special_tokens[BOS]
    assert written.count(added[0]) == 1
    assert SENTENCEPIECE.encode("the") == added[1:]


def test_nothing_is_added_where_the_tokenizer_adds_nothing() -> None:
    twice = BYTE_LEVEL.special_tokens[BOS]
    assert BYTE_LEVEL.encode_prompt(BOS + BOS) == [twice, twice]


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, SENTENCEPIECE])
def test_special_names_as_plain_text(tokenizer: TextTokenizer) -> None:
    text = f"a{BOS}b{BOS}"
    plain = tokenizer.encode_as_plain_text(text)
    assert tokenizer.special_ids.isdisjoint(plain)
    assert "".join(tokenizer.token_text(t) for t in plain).strip("\u2581 ") == text
    assert tokenizer.special_tokens[BOS] in tokenizer.encode(text)


def test_a_name_in_the_model_s_own_vocabulary_is_broken_up() -> None:
    """SentencePiece vocabularies contain their special tokens; merges may lead to them."""
    made = byte_level_tokenizer()
    made.add_special_tokens([AddedToken("the", normalized=False)])
    tokenizer = TextTokenizer(made)
    ids = tokenizer.encode_as_plain_text("the theme")
    assert tokenizer.special_ids.isdisjoint(ids)
    assert "".join(map(tokenizer.token_text, ids)) == "the theme"


@settings(max_examples=300)
@given(text=st.text(st.one_of(st.characters(codec="utf-8"), st.sampled_from("the a"))))
@pytest.mark.parametrize(
    "tokenizer", [BYTE_LEVEL, SENTENCEPIECE, TextTokenizer(metaspace_tokenizer())]
)
def test_no_encoding_is_shorter_than_the_bound(tokenizer: TextTokenizer, text: str) -> None:
    bound = tokenizer.shortest_encoding(len(text.encode()))
    assert bound <= len(tokenizer.encode(text))


def unbounded(change: str) -> Tokenizer:
    made = byte_level_tokenizer()
    if change == "normalizer":
        made.normalizer = normalizers.StripAccents()
    elif change == "pre-tokenizer":
        made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    else:
        made.add_special_tokens([AddedToken("<pad>", lstrip=True)])
    return made


@pytest.mark.parametrize("change", ["normalizer", "pre-tokenizer", "added token"])
def test_there_is_no_bound_where_text_can_vanish(change: str) -> None:
    assert TextTokenizer(unbounded(change)).shortest_encoding(10**9) == 0
    assert BYTE_LEVEL.shortest_encoding(10**9) > 10**7


def test_a_normalizer_that_composes_loosens_the_bound() -> None:
    made = byte_level_tokenizer()
    made.normalizer = normalizers.NFC()
    loose = TextTokenizer(made).shortest_encoding(9000)
    assert loose == pytest.approx(BYTE_LEVEL.shortest_encoding(9000) / 3, abs=1)


def test_truncation_in_the_file_is_switched_off(tmp_path: Path) -> None:
    made = byte_level_tokenizer()
    made.enable_truncation(max_length=2)
    made.save(str(tmp_path / "tokenizer.json"))
    assert len(TextTokenizer.load(tmp_path).encode("x" * 50)) > 2


def test_a_missing_or_broken_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="missing"):
        TextTokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ModelError, match="cannot be read"):
        TextTokenizer.load(tmp_path)


def test_how_tokens_are_shown() -> None:
    end = BYTE_LEVEL.special_tokens[END]
    assert BYTE_LEVEL.token_text(end) == END
    assert BYTE_LEVEL.token_utf8(end) == END.encode()
    half = BYTE_LEVEL.encode("é")[0]
    assert BYTE_LEVEL.token_text(half) == "\ufffd"
    assert BYTE_LEVEL.token_utf8(half) == b"\xc3"
