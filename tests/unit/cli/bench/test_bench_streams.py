"""The load generator's HTTP and its account of tokens, on bytes cut anywhere."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.cli.bench.serve.client.answer_account import AnswerAccount, error_of_body
from services.cli.bench.serve.client.http_stream import BrokenAnswerError, ResponseParser
from services.cli.bench.serve.sample import RequestSample


class Sink:
    """Keeps an answer."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.body = b""

    def on_head(self, status: int, headers: dict[bytes, bytes]) -> None:
        self.status, self.headers = status, headers

    def on_body(self, piece: bytes) -> None:
        self.body += piece


def pieces(wire: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(wire), *(cut % (len(wire) + 1) for cut in cuts)})
    return [wire[a:b] for a, b in pairwise(edges)]


CHUNKED = (
    b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 200 OK\r\nX-Request-Id: r1\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n1;ext=1\r\n \r\nA\r\n0123456789\r\n"
    b"0\r\ntrailer: 1\r\n\r\n"
)
SIZED = b"HTTP/1.1 429 Too Many\r\ncontent-length: 4\r\nconnection: close\r\n\r\nfull"


@given(st.lists(st.integers(0, 1000), max_size=12))
def test_a_chunked_answer_cut_anywhere(cuts: list[int]) -> None:
    sink = Sink()
    parser = ResponseParser(sink)
    for piece in pieces(CHUNKED, cuts):
        assert not parser.complete
        parser.feed(piece)
    assert parser.complete
    assert parser.keep_alive
    assert (sink.status, sink.body) == (200, b"hello 0123456789")
    assert sink.headers[b"x-request-id"] == b"r1"


@given(st.lists(st.integers(0, 1000), max_size=6))
def test_a_sized_answer_cut_anywhere(cuts: list[int]) -> None:
    sink = Sink()
    parser = ResponseParser(sink)
    for piece in pieces(SIZED, cuts):
        parser.feed(piece)
    assert parser.complete
    assert not parser.keep_alive
    assert (sink.status, sink.body) == (429, b"full")


def test_an_answer_until_the_connection_ends() -> None:
    sink = Sink()
    parser = ResponseParser(sink)
    parser.feed(b"HTTP/1.0 200 OK\r\n\r\nab")
    parser.feed(b"cd")
    assert not parser.complete
    parser.end()
    assert parser.complete
    assert sink.body == b"abcd"


@pytest.mark.parametrize(
    "wire",
    [
        b"SSH-2.0-x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nabc",
        b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nab",
        b"h" * 70_000,
    ],
)
def test_what_is_no_answer_is_an_error(wire: bytes) -> None:
    with pytest.raises(BrokenAnswerError):
        ResponseParser(Sink()).feed(wire)


@pytest.mark.parametrize("length", [1, 30, len(CHUNKED) - 1])
def test_an_answer_cut_off_is_an_error(length: int) -> None:
    parser = ResponseParser(Sink())
    parser.feed(CHUNKED[:length])
    with pytest.raises(BrokenAnswerError):
        parser.end()


def text_event(text: str, usage: object = None) -> bytes:
    event: dict[str, Any] = {"choices": [{"index": 0, "text": text, "finish_reason": None}]}
    return b"data: " + json.dumps(event | ({"usage": usage} if usage else {})).encode() + b"\n\n"


def usage_of(completion: int, cached: int = 0) -> dict[str, Any]:
    details = {"cached_tokens": cached}
    return {
        "prompt_tokens": 40,
        "completion_tokens": completion,
        "prompt_tokens_details": details,
    }


def read(wire: bytes, cuts: list[int] | None = None) -> tuple[RequestSample, AnswerAccount]:
    sample = RequestSample(0, 0.0, 40, 10)
    stream = AnswerAccount(sample)
    for number, piece in enumerate(pieces(wire, cuts or [])):
        stream.feed(piece, float(number))
    return sample, stream


TAIL = b'data: {"choices":[],"usage":' + json.dumps(usage_of(5, 16)).encode() + b"}\n\n"
END = b"data: [DONE]\n\n"


def test_only_chunks_with_output_count() -> None:
    opening = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
    thought = b'data: {"choices":[{"delta":{"reasoning_content":"hm"}}]}\n\n'
    call = b'data: {"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}\n\n'
    last = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'
    sample, stream = read(b": hello\n\n" + opening + thought + call + last + END)
    assert stream.done
    assert sample.ok
    assert len(sample.chunk_times_s) == 2
    assert sample.counted_from == "chunks"


def test_the_last_usage_tells_the_sum() -> None:
    sample, _ = read(text_event("a") + text_event("b") + TAIL + END)
    assert sample.counted_from == "total"
    assert (sample.num_tokens, sample.prompt_tokens, sample.cached_tokens) == (5, 40, 16)
    assert sample.tokens_per_chunk == 2.5


def test_continuous_usage_tells_each_chunk() -> None:
    wire = text_event("a", usage_of(1)) + text_event("bcd", usage_of(4)) + TAIL + END
    sample, _ = read(wire)
    assert sample.counted_from == "continuous"
    assert sample.chunk_tokens == [1, 3]
    assert sample.num_tokens == 5


FINISH = b'data: {"choices":[{"index":0,"text":"","finish_reason":"length"}]}\n\n'


def test_tokens_without_text_are_an_answer_that_arrived_with_its_finish() -> None:
    sample = RequestSample(0, 0.0, 40, 10)
    stream = AnswerAccount(sample)
    stream.feed(text_event(""), 1.0)
    stream.feed(FINISH, 2.0)
    stream.feed(TAIL, 3.0)
    stream.feed(END, 3.0)
    assert sample.chunk_times_s == [2.0]
    assert (sample.num_tokens, sample.chunk_tokens, sample.without_text) == (5, [5], True)
    assert read(FINISH + END)[0].num_tokens == 1  # no usage: a finish is a token at least
    assert read(TAIL + END)[0].num_tokens == 5  # no finish: the usage tells it
    assert not read(END)[0].chunk_times_s


def test_continuous_usage_shows_tokens_without_text() -> None:
    opening = text_event("", usage_of(0))
    sample, _ = read(opening + text_event("", usage_of(1)) + text_event("b", usage_of(2)) + END)
    assert sample.chunk_tokens == [1, 1]
    assert not sample.without_text


def test_the_usage_of_a_last_chunk_is_not_its_own() -> None:
    """Some servers send the sum with the chunk that finishes instead of after it."""
    event = json.loads(FINISH[6:]) | {"usage": usage_of(2)}
    last = b"data: " + json.dumps(event).encode() + b"\n\n"
    sample, _ = read(text_event("a") + text_event("b") + last + END)
    assert (sample.counted_from, sample.chunk_tokens) == ("total", [1, 1])


@given(st.lists(st.integers(0, 5000), max_size=12))
def test_events_cut_anywhere_say_the_same(cuts: list[int]) -> None:
    wire = text_event("a\u2028é", usage_of(1)) + text_event("b", usage_of(2)) + TAIL + END
    sample, stream = read(wire.replace(b"\n", b"\r\n"), cuts)
    assert stream.done
    assert sample.chunk_tokens == [1, 1]
    assert sample.num_tokens == 5


@pytest.mark.parametrize(
    ("wire", "kind", "text"),
    [
        (b'data: {"error":{"message":"gone"}}\n\n', "stream_error", "gone"),
        (b'data: {"error":"gone"}\n\n', "stream_error", "gone"),
        (b"data: {oops\n\n", "stream_broken", "no JSON object"),
        (b"data: 5\n\n", "stream_broken", "no JSON object"),
    ],
)
def test_an_error_in_the_stream_is_kept(wire: bytes, kind: str, text: str) -> None:
    sample, _ = read(text_event("a") + wire)
    assert sample.error == kind
    assert text in sample.error_text


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"error":{"message":"no room"}}', "no room"),
        (b'{"detail":"Not Found"}', "Not Found"),
        (b"<html>bad gateway</html>", "<html>bad gateway</html>"),
    ],
)
def test_what_a_refusal_says(body: bytes, text: str) -> None:
    assert text in error_of_body(body)
