"""The load test's reading of streams, its prompts, and its view of a gateway's metrics."""

import json
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.answer_stream import AnswerError, AnswerTimes, read_answer
from loadtest.gateway_view import GAP, TTFT, Total, parse_totals
from loadtest.limits import RunLimits, merged, quantile
from loadtest.prompts import PromptWriter, trimmed


def event(content: str = "", tokens: int | None = None, finish: str | None = None) -> bytes:
    chunk: dict[str, object] = {
        "choices": [{"index": 0, "delta": {"content": content}, "finish_reason": finish}]
    }
    if tokens is not None:
        chunk["usage"] = {"completion_tokens": tokens, "total_tokens": tokens + 10}
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


STREAM = (event("", 0), event("a", 1), event("b c", 3), event("d", 4, "stop"), b"data: [DONE]\n\n")


def read_at(chunks: tuple[bytes, ...], times_s: list[float]) -> AnswerTimes:
    clock: Iterator[float] = iter(times_s)
    return read_answer(chunks, 0.0, lambda: next(clock))


def test_first_token_gaps_and_tokens_that_came_together() -> None:
    times = read_at(STREAM, [0.1, 0.2, 0.25, 0.31, 0.32])
    assert times.first_token_ms == pytest.approx(200)
    assert times.gaps_ms == pytest.approx([50, 0, 60])
    assert (times.num_tokens, times.num_total_tokens) == (4, 14)
    assert (times.text, times.finish_reason) == ("ab cd", "stop")
    assert times.end_ms == pytest.approx(320)


def test_a_server_without_running_usage_counts_as_one_token_an_event() -> None:
    times = read_at((event("a"), event("b", finish="length"), b"data: [DONE]\n\n"), [1, 2, 3])
    assert (times.num_tokens, times.gaps_ms) == (2, [1000])


@given(st.lists(st.integers(1, 200), max_size=20))
def test_where_the_bytes_are_cut_changes_nothing(cuts: list[int]) -> None:
    whole, pieces = b"".join(STREAM), []
    for cut in cuts:
        pieces.append(whole[:cut])
        whole = whole[cut:]
    times = read_answer([*pieces, whole], 0.0, lambda: 1.0)
    assert (times.text, times.num_tokens) == ("ab cd", 4)


@pytest.mark.parametrize(
    ("chunks", "message"),
    [
        (STREAM[:-1], "without"),
        ((event("a", 1), b"data: [DONE]\n\n"), "finish_reason"),
        ((event("", 0, "stop"), b"data: [DONE]\n\n"), "no token"),
        ((b'data: {"error": {"code": "server_error", "message": "m"}}\n\n',), "server_error"),
    ],
)
def test_what_is_no_complete_answer_is_a_failure(chunks: tuple[bytes, ...], message: str) -> None:
    with pytest.raises(AnswerError, match=message):
        read_answer(chunks, 0.0, lambda: 1.0)


def test_the_same_seed_asks_the_same_and_users_share_system_prompts() -> None:
    first, again, other = PromptWriter(1), PromptWriter(1), PromptWriter(2)
    assert first.document(200) == again.document(200) != other.document(200)
    prompts = {PromptWriter(seed).system_prompt(100)["content"] for seed in range(60)}
    assert 2 <= len(prompts) <= 8
    assert len(first.document(600)["content"].split()) >= 400


def test_a_long_conversation_loses_its_oldest_turn_and_keeps_the_system_prompt() -> None:
    messages = [{"role": role, "content": str(place)} for place, role in enumerate("suaua")]
    assert trimmed(messages, 99, 100) == messages
    assert [m["content"] for m in trimmed(messages, 100, 100)] == ["0", "3", "4"]


def test_the_gateways_histograms_over_one_run() -> None:
    text = f"{TTFT}_sum 3.0\n{TTFT}_count 10.0\n{GAP}_sum 1.5\n{GAP}_count 300.0\n"
    after = parse_totals(text)
    assert after[TTFT].since(Total(1.0, 5.0)).mean_ms == pytest.approx(400)
    assert Total().mean_ms is None
    assert parse_totals("up 1\n") == {}


TIMES = {"TTFT": Counter({100: 99, 900: 1}), "GAP": Counter({10: 90, 50: 10})}


@pytest.mark.parametrize(
    ("limits", "broken"),
    [
        (RunLimits(), []),
        (RunLimits(ttft_ms=100, gap_ms=50, failed=0.01), []),
        (RunLimits(ttft_ms=99), ["TTFT p99 is 100 ms, limit 99 ms"]),
        (RunLimits(gap_ms=49), ["GAP p99 is 50 ms, limit 49 ms"]),
        (RunLimits(failed=0.0), ["1 of 100 requests failed, limit 0.00%"]),
    ],
)
def test_a_run_says_which_of_its_limits_it_broke(limits: RunLimits, broken: list[str]) -> None:
    assert limits.broken(TIMES, 100, 1) == broken


def test_what_was_not_measured_was_not_kept() -> None:
    assert RunLimits(ttft_ms=1).broken({}, 0, 0) == ["no TTFT was measured"]
    assert quantile(merged([{1: 2}, {1: 1, 7: 1}]), 0.75) == 1
    assert quantile(merged([{1: 2}, {1: 1, 7: 1}]), 0.76) == 7
