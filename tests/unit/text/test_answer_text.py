"""One answer's text: stop strings, counting, log-probabilities, and both JSON shapes."""

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.gateway.answer.logprobs import LOWEST, TokenNames, chat_logprobs, text_logprobs
from services.gateway.answer.shape import AnswerIdentity, AnswerShape, ChatShape, TextShape
from services.gateway.answer.sse import ChunkWriter
from services.gateway.answer.usage import usage
from services.gateway.owner.generation import Delta
from shared.protocol import FinishReason, Sampling, TokenLogprobs
from shared.text.answer_text import AnswerText, TokenEntry
from shared.text.ending import Ending
from shared.text.tokenizer import TextTokenizer
from tests.support.cases.http_bodies import events_of, text_of
from tests.support.fakes.served_app import delta
from tests.support.models.text_models import END, byte_level_tokenizer

TOKENIZER = TextTokenizer(byte_level_tokenizer())


def feed(answer: AnswerText, ids: list[int], size: int, reason: FinishReason = "length") -> str:
    """The shown text of an answer that arrives in deltas of `size` tokens."""
    shown = ""
    for at in range(0, len(ids), size):
        last = at + size >= len(ids)
        shown += answer.push(delta(tuple(ids[at : at + size]), reason if last else None))
        if answer.finish_reason is not None:
            break
    return shown


@settings(max_examples=300)
@given(
    text=st.text(st.sampled_from("ab é👋\n"), max_size=30),
    stop=st.text(st.sampled_from("ab é👋\n"), min_size=1, max_size=3),
    size=st.integers(1, 5),
)
def test_rows_69_70_cut_at_the_stop_string_however_tokens_fall(
    text: str, stop: str, size: int
) -> None:
    ids = [*TOKENIZER.encode(text), TOKENIZER.special_tokens[END]]
    answer = AnswerText(TOKENIZER, Sampling(max_tokens=100), (stop,))
    shown = feed(answer, ids, size, "stop")
    assert shown == text.partition(stop)[0]
    assert answer.stopped == (stop in text)
    assert answer.finish_reason == "stop"
    if answer.stopped:
        used = ids[: answer.num_tokens]
        assert stop in "".join(map(str, [b"".join(map(TOKENIZER.token_utf8, used)).decode()]))


def test_row_70_a_stop_of_the_replacement_character() -> None:
    ids = TOKENIZER.encode("ok 👋")[:-1]
    answer = AnswerText(TOKENIZER, Sampling(max_tokens=100), ("\ufffd",))
    assert feed(answer, ids, 1) == "ok "
    assert answer.stopped


def test_stop_strings_wait_for_min_tokens() -> None:
    ids = TOKENIZER.encode("a.b.c.d.")
    answer = AnswerText(TOKENIZER, Sampling(max_tokens=100, min_tokens=3), (".",))
    assert feed(answer, ids, 1) == "a.b"
    assert answer.num_tokens == 4


def test_text_held_back_comes_out_at_the_end() -> None:
    answer = AnswerText(TOKENIZER, Sampling(max_tokens=100), ("END",))
    assert feed(answer, TOKENIZER.encode("the EN"), 1) == "the EN"
    assert (answer.finish_reason, answer.stopped) == ("length", False)


EOS = TOKENIZER.special_tokens[END]
(LETTER,) = TOKENIZER.encode("a")
ENDINGS: list[tuple[Sampling, tuple[str, ...], int, Ending]] = [
    (Sampling(9, eos_token_ids=(EOS,)), (), EOS, Ending("stop", None, EOS)),
    (Sampling(9, stop_token_ids=(LETTER,)), (), LETTER, Ending("stop", LETTER, LETTER)),
    (
        Sampling(9, eos_token_ids=(EOS,), stop_token_ids=(EOS,)),
        (),
        EOS,
        Ending("stop", None, EOS),
    ),
    (
        Sampling(9, eos_token_ids=(EOS,), stop_token_ids=(EOS,), ignore_eos=True),
        (),
        EOS,
        Ending("stop", EOS, EOS),
    ),
    (Sampling(9, eos_token_ids=(EOS,)), ("zz", "a"), LETTER, Ending("stop", "a", "a")),
    (Sampling(9, eos_token_ids=(EOS,)), (), LETTER, Ending("stop")),
]


@pytest.mark.parametrize(("sampling", "stops", "token_id", "ending"), ENDINGS)
def test_what_ended_an_answer(
    sampling: Sampling, stops: tuple[str, ...], token_id: int, ending: Ending
) -> None:
    """EOS, a stop token, one that is both, a stop string, and a grammar that is complete."""
    answer = AnswerText(TOKENIZER, sampling, stops)
    answer.push(delta((*TOKENIZER.encode("b"), token_id), "stop"))
    assert answer.ending == ending


def test_the_limit_is_no_stop_even_where_a_stop_token_came_with_it() -> None:
    answer = AnswerText(TOKENIZER, Sampling(1, stop_token_ids=(LETTER,)))
    answer.push(delta((LETTER,), "length"))
    assert answer.ending == Ending("length")


def entry(token: str, offset: int, logprob: float = -0.5) -> TokenEntry:
    (token_id,) = TOKENIZER.encode(token)
    top = TOKENIZER.encode("ab")
    return TokenEntry(token_id, TokenLogprobs(logprob, tuple(top), (-1.0, -2.0)), offset)


def test_log_probabilities_follow_the_text_that_was_shown() -> None:
    """Those of held-back tokens wait; those of a stop string never come."""
    answer = AnswerText(TOKENIZER, Sampling(max_tokens=9, logprobs=0), ("cd",))
    a, b, c, d = (token for letter in "abcd" for token in TOKENIZER.encode(letter))
    assert answer.push(delta((a, b), None, 0)) == "ab"
    assert [item.token_id for item in answer.take_entries()] == [a, b]
    assert answer.push(delta((c,), None, 0)) == ""
    assert answer.take_entries() == []
    assert answer.push(delta((d,), None, 0)) == ""
    assert answer.stopped
    assert answer.take_entries() == []


def test_log_probabilities_of_all_tokens_come_in_the_end() -> None:
    answer = AnswerText(TOKENIZER, Sampling(max_tokens=9, logprobs=0))
    ids = [*TOKENIZER.encode("é"), TOKENIZER.special_tokens[END]]
    answer.push(delta(tuple(ids), "stop", 0))
    assert [(item.token_id, item.text_offset) for item in answer.take_entries()] == [
        (ids[0], 0),
        (ids[1], 0),
        (ids[2], 1),
    ]


def test_the_chat_shape_of_log_probabilities() -> None:
    shown = chat_logprobs(TokenNames(TOKENIZER), [entry("a", 0), entry("b", 1, -math.inf)])
    assert shown["content"][0] == {
        "token": "a",
        "logprob": -0.5,
        "bytes": [97],
        "top_logprobs": [
            {"token": "a", "logprob": -1.0, "bytes": [97]},
            {"token": "b", "logprob": -2.0, "bytes": [98]},
        ],
    }
    assert shown["content"][1]["logprob"] == LOWEST
    json.dumps(shown, allow_nan=False)


def test_the_completions_shape_of_log_probabilities() -> None:
    shown = text_logprobs(TokenNames(TOKENIZER), [entry("a", 0), entry("c", 1)])
    assert shown == {
        "tokens": ["a", "c"],
        "token_logprobs": [-0.5, -0.5],
        "top_logprobs": [{"a": -1.0, "b": -2.0}, {"a": -1.0, "b": -2.0, "c": -0.5}],
        "text_offset": [0, 1],
    }
    bare = TokenEntry(TOKENIZER.encode("c")[0], TokenLogprobs(-0.5), 0)
    assert text_logprobs(TokenNames(TOKENIZER), [bare])["top_logprobs"] == [{"c": -0.5}]
    (name,) = text_logprobs(TokenNames(TOKENIZER, as_ids=True), [bare])["tokens"]
    assert name == f"token_id:{bare.token_id}"


SHAPES: dict[str, AnswerShape] = {
    "chat": ChatShape(TOKENIZER),
    "text": TextShape(TOKENIZER),
}


@pytest.mark.parametrize("name", SHAPES)
@settings(max_examples=100)
@given(text=st.text(st.characters(codec="utf-8"), min_size=1))
def test_every_chunk_is_json_with_exactly_this_text(name: str, text: str) -> None:
    writer = ChunkWriter(SHAPES[name], AnswerIdentity("1", 'm"\n', 5), with_usage=False)
    for chunk in (writer.text(text), writer.piece(text, None, None)):
        events = events_of(chunk.decode())
        assert len(events) == 1
        assert text_of(events) == text
        assert events[0]["model"] == 'm"\n'
    assert writer.text(text) == writer.piece(text, None, None)


@pytest.mark.parametrize("name", SHAPES)
def test_usage_is_null_until_the_last_chunk(name: str) -> None:
    writer = ChunkWriter(SHAPES[name], AnswerIdentity("1", "m", 5), with_usage=True)
    cost = usage(3, 2, 1)
    chunks: list[Any] = events_of(
        (
            writer.text("a")
            + writer.piece("", None, None, ending=Ending("length"))
            + writer.usage(cost)
        ).decode()
    )
    assert [chunk["usage"] for chunk in chunks] == [None, None, cost]
    assert chunks[-1]["choices"] == []
    assert chunks[1]["choices"][0]["finish_reason"] == "length"


def test_a_merged_delta_shows_the_same_text() -> None:
    ids = TOKENIZER.encode("hello world é👋")
    answer = AnswerText(TOKENIZER, Sampling(max_tokens=99))
    assert answer.push(Delta(tuple(ids), (), "length")) == "hello world é👋"
    assert answer.num_tokens == len(ids)
