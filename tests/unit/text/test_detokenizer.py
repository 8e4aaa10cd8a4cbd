"""The incremental detokenizer: pieces always add up to the whole text, whatever the tokens.

The oracle is `tokenizers`' own decode of the whole list. With byte fallback the library replaces
a whole run of byte tokens by U+FFFD when any of it is broken; there the oracle is Python's
decoding of the bytes, and the library's wherever the run is valid.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models

from shared.text.detokenizer import Detokenizer
from shared.text.token_bytes import per_token
from shared.text.tokenizer import TextTokenizer
from tests.support.models.text_models import (
    BOS,
    END,
    THINK,
    byte_level_tokenizer,
    metaspace_tokenizer,
    sentencepiece_tokenizer,
)

BYTE_LEVEL = byte_level_tokenizer()
BYTE_LEVEL.add_tokens(
    [AddedToken(name, normalized=False) for name in ("日本", "a b", "é", "\u0120x")]
)
SENTENCEPIECE = sentencepiece_tokenizer()
METASPACE = metaspace_tokenizer()
MAKERS: dict[str, Tokenizer] = {
    "byte-level": BYTE_LEVEL,
    "sentencepiece": SENTENCEPIECE,
    "metaspace": METASPACE,
}
PIECES = st.one_of(
    st.characters(codec="utf-8"),
    st.sampled_from([" ", "\n", "\u2581", "\ufffd", "e\u0301", "\u202e", "中", BOS, END, THINK]),
    st.sampled_from(["👩\u200d👩\u200d👧", "the", "<0x41>", "\ue000"]),
)
TEXTS = st.lists(PIECES, max_size=40).map("".join)


def stream(tokenizer: Tokenizer, ids: list[int], size: int = 1) -> str:
    detokenizer = TextTokenizer(tokenizer).detokenizer()
    pieces = [detokenizer.push(ids[at : at + size]) for at in range(0, len(ids), size)]
    return "".join(pieces) + detokenizer.end()


@settings(max_examples=300)
@given(
    ids=st.lists(st.integers(0, BYTE_LEVEL.get_vocab_size() - 1), max_size=60),
    size=st.integers(1, 7),
)
def test_byte_level_equals_full_decode(ids: list[int], size: int) -> None:
    assert stream(BYTE_LEVEL, ids, size) == BYTE_LEVEL.decode(ids)


@pytest.mark.parametrize("name", MAKERS)
@settings(max_examples=200)
@given(text=TEXTS)
def test_text_equals_full_decode(name: str, text: str) -> None:
    tokenizer = MAKERS[name]
    ids = tokenizer.encode(text).ids
    assert stream(tokenizer, ids) == tokenizer.decode(ids)


@pytest.mark.parametrize("name", ["sentencepiece", "metaspace"])
@settings(max_examples=300)
@given(ids=st.lists(st.integers(0, SENTENCEPIECE.get_vocab_size() - 1), max_size=60))
def test_byte_fallback_equals_decoding_the_bytes(name: str, ids: list[int]) -> None:
    tokenizer = MAKERS[name]
    whole = tokenizer.decode(ids)
    streamed = stream(tokenizer, ids)
    assert streamed == stream(tokenizer, ids, 1000)
    if "\ufffd" not in whole:
        assert streamed == whole
    assert streamed.replace("\ufffd", "").startswith(whole.partition("\ufffd")[0])


@settings(max_examples=200)
@given(ids=st.lists(st.integers(0, BYTE_LEVEL.get_vocab_size() - 1), min_size=1, max_size=40))
def test_no_piece_ends_inside_a_character(ids: list[int]) -> None:
    """Each prefix of what was shown is a prefix of the final text: nothing is taken back."""
    detokenizer = TextTokenizer(BYTE_LEVEL).detokenizer()
    shown = ""
    whole = BYTE_LEVEL.decode(ids)
    for token in ids:
        shown += detokenizer.push((token,))
        assert whole.startswith(shown)


@pytest.mark.parametrize("name", MAKERS)
def test_a_cut_character_is_one_replacement_at_the_end(name: str) -> None:
    """Row 67."""
    tokenizer = MAKERS[name]
    ids = tokenizer.encode("hello 👋", add_special_tokens=False).ids
    assert stream(tokenizer, ids[:-1]) == "hello \ufffd"


def test_special_tokens_leave_the_text_and_marked_ones_stay() -> None:
    ids = TextTokenizer(BYTE_LEVEL).encode(BOS + THINK + END)
    assert len(ids) == 3
    assert stream(BYTE_LEVEL, ids) == THINK


def test_an_id_outside_the_vocabulary_adds_nothing() -> None:
    assert stream(BYTE_LEVEL, [10**6]) == ""


def word_piece(decoder: decoders.Decoder | None) -> Tokenizer:
    names = ["[UNK]", "hello", "##ing", "wor", "##ld", ",", "n't", "do", "caf", "##\u00e9"]
    model = models.WordPiece(
        {name: index for index, name in enumerate(names)},
        unk_token="[UNK]",  # noqa: S106
    )
    tokenizer = Tokenizer(model)
    tokenizer.decoder = decoder
    tokenizer.add_special_tokens([AddedToken("[SEP]")])
    return tokenizer


OTHERS: dict[str, Tokenizer] = {
    "word-piece": word_piece(decoders.WordPiece(cleanup=False)),
    "none": word_piece(None),
    "ctc": word_piece(decoders.CTC(pad_token="[UNK]")),  # noqa: S106
}


@pytest.mark.parametrize("name", OTHERS)
@settings(max_examples=200)
@given(
    ids=st.lists(st.integers(0, 10), max_size=40),
    size=st.integers(1, 7),
)
def test_other_decoders_are_the_library_s(name: str, ids: list[int], size: int) -> None:
    tokenizer = OTHERS[name]
    assert per_token(tokenizer) is None
    streamed = stream(tokenizer, ids, size)
    assert streamed == stream(tokenizer, ids, 1)
    if name != "ctc":  # which takes text back that was shown
        assert streamed == tokenizer.decode(ids)


def test_a_text_that_a_decoder_takes_back_goes_on_behind_it() -> None:
    tokenizer = word_piece(decoders.WordPiece(cleanup=True))
    assert stream(tokenizer, [7, 6, 5, 10, 99, 8, 9]).replace(" ", "") == "don't,caf\u00e9"


def test_how_tokens_are_shown_without_a_decoder() -> None:
    tokenizer = TextTokenizer(OTHERS["none"])
    assert tokenizer.token_text(9) == "##\u00e9"
    assert tokenizer.token_utf8(9) == "##\u00e9".encode()
    assert tokenizer.token_text(10) == "[SEP]"


class ForgetsPending(Detokenizer):
    """A mutant: bytes of an incomplete character are lost between pushes."""

    def push(self, token_ids: object) -> str:
        self._pending = b""
        return super().push(token_ids)  # type: ignore[arg-type]


def test_the_oracle_finds_a_detokenizer_that_loses_bytes() -> None:
    tokenizer = TextTokenizer(BYTE_LEVEL)
    ids = tokenizer.encode("👋")
    assert tokenizer.token_bytes is not None
    mutant = ForgetsPending(tokenizer.token_bytes, tokenizer.special_ids)
    assert len(ids) > 1
    assert "".join(mutant.push((token,)) for token in ids) + mutant.end() != "👋"
