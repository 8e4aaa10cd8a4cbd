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
from loadtest.prefix_saving import PrefixSaving, compared, expected_share
from loadtest.prompts import PromptWriter, TokenWriter, trimmed


def event(
    content: str = "",
    tokens: int | None = None,
    finish: str | None = None,
    cached: int | None = None,
) -> bytes:
    chunk: dict[str, object] = {
        "choices": [{"index": 0, "delta": {"content": content}, "finish_reason": finish}]
    }
    if tokens is not None:
        chunk["usage"] = {"completion_tokens": tokens, "total_tokens": tokens + 10}
    if cached is not None:
        chunk["usage"] = {
            "completion_tokens": tokens,
            "prompt_tokens": 10,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
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


def answered(num_prompt: int, num_cached: int) -> AnswerTimes:
    return AnswerTimes(num_prompt_tokens=num_prompt, num_cached_tokens=num_cached)


def test_cached_tokens_are_read_of_the_usage() -> None:
    stream = (event("a", 1, cached=8), event("b", 2, "stop", cached=8), b"data: [DONE]\n\n")
    times = read_at(stream, [0.1, 0.2, 0.3])
    assert (times.num_prompt_tokens, times.num_cached_tokens) == (10, 8)
    silent = read_at(STREAM, [0.1] * 5)
    assert (silent.num_prompt_tokens, silent.num_cached_tokens) == (0, 0)


def test_the_saving_is_of_all_prompt_tokens_that_usage_tells() -> None:
    saving = PrefixSaving()
    assert saving.share == 0
    for times in (answered(100, 0), answered(300, 100), answered(0, 0)):
        saving.note(times)
    assert saving.share == 0.25
    assert saving.text == "prefix cache: 100 of 400 prompt tokens were not computed, 25.0%"
    assert saving.num_requests == 2
    saving.clear()
    assert (saving.num_requests, saving.share) == (0, 0)


def test_the_formula_of_a_shared_system_prompt() -> None:
    """10,000 requests of 500 shared and 50 own tokens: 4,999,500 of 5,500,000."""
    assert expected_share(10_000, 500, 50) == 4_999_500 / 5_500_000
    assert expected_share(10_000, 500, 50, 16) == 9_999 * 496 / 5_500_000
    assert expected_share(1, 500, 50) == 0
    difference = expected_share(10_000, 500, 50) - expected_share(10_000, 500, 50, 16)
    assert 0.007 < difference < 0.01  # what the end of a block costs


def test_the_run_is_set_against_the_formula_at_its_own_number_of_requests() -> None:
    saving = PrefixSaving()
    saving.note(answered(550, 0))
    for _ in range(99):
        saving.note(answered(550, 496))
    text = compared(saving, 500, 50)
    assert text.startswith("100 requests that share 500 of 550 tokens: ")
    assert "90.00% are saved, in whole blocks of 16 89.28%; it was 89.28%, 0.72 points" in text
    for _ in range(2):
        saving.note(answered(550, 0))  # two more that find nothing
    assert compared(saving, 500, 50).endswith("2.49 points off the formula")


def test_token_prompts_begin_alike_within_a_load_and_go_on_each_with_its_own() -> None:
    one, other = TokenWriter(1, 7, 500), TokenWriter(1, 8, 500)
    first, second, third = one.prompt(50), one.prompt(50), other.prompt(50)
    assert {len(prompt) for prompt in (first, second, third)} == {550}
    assert first[:500] == second[:500] == third[:500]
    assert len({tuple(prompt[500:516]) for prompt in (first, second, third)}) == 3
    assert TokenWriter(2, 7, 500).prompt(50)[:16] != first[:16]


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
