"""When a load's requests come, and what they are made of."""

import json
import math
import random
from itertools import pairwise
from pathlib import Path
from statistics import fmean, pstdev

import pytest

from services.cli.bench.serve.arrivals import ArrivalKind, Arrivals
from services.cli.bench.serve.endpoint import Endpoint
from services.cli.bench.serve.prompts import ChatPrompts, TokenPrompts, WordCost, safe_ids
from services.cli.bench.serve.request_template import RequestTemplate
from services.cli.bench.serve.trace_file import TraceLine, read_trace, spread_equal_times
from services.cli.bench.serve.workload import (
    Lengths,
    Limits,
    Planner,
    fitting,
)
from shared.errors import SettingsError

RATE = 20.0
NUM = 20_000


def gaps_of(arrivals: Arrivals, seed: int = 1) -> list[float]:
    times_s = arrivals.times(NUM, NUM / RATE, random.Random(seed))  # noqa: S311
    return [times_s[0], *(after - before for before, after in pairwise(times_s))]


@pytest.mark.parametrize(
    ("kind", "burstiness", "variation"),
    [("poisson", 1.0, 1.0), ("gamma", 0.25, 2.0), ("gamma", 4.0, 0.5), ("constant", 1.0, 0.0)],
)
def test_mean_rate_and_variation_of_the_gaps(
    kind: ArrivalKind, burstiness: float, variation: float
) -> None:
    """n = 20,000: the mean is off by 1 / sqrt(n) * variation, some 1.5 % at most."""
    gaps = gaps_of(Arrivals(kind, burstiness))
    assert fmean(gaps) * RATE == pytest.approx(1.0, rel=0.05)
    assert pstdev(gaps) / fmean(gaps) == pytest.approx(variation, rel=0.05, abs=0.01)


def test_on_off_keeps_its_rate_and_its_silence() -> None:
    arrivals = Arrivals("onoff", on_s=1.0, off_s=4.0)
    times_s = arrivals.times(NUM, NUM / RATE, random.Random(3))  # noqa: S311
    assert NUM / times_s[-1] == pytest.approx(RATE, rel=0.05)
    assert all(at_s % 5.0 <= 1.0 for at_s in times_s)
    assert times_s == sorted(times_s)


def test_same_seed_same_times_other_seed_others() -> None:
    arrivals = Arrivals("poisson")
    assert gaps_of(arrivals, 7) == gaps_of(arrivals, 7)
    assert gaps_of(arrivals, 7) != gaps_of(arrivals, 8)


@pytest.mark.parametrize("kind", ["poisson", "gamma", "onoff", "constant"])
@pytest.mark.parametrize("seed", range(5))
def test_a_short_run_has_its_rate_whatever_the_seed(kind: ArrivalKind, seed: int) -> None:
    """A draw of 30 Poisson arrivals is off by 18 % on average, 10 s at 1.4/s by up to 50 %."""
    arrivals = Arrivals(kind, burstiness=0.5, on_s=1.0, off_s=1.5)
    times_s = arrivals.times(14, 10.0, random.Random(seed))  # noqa: S311
    assert len(times_s) == 14
    assert times_s == sorted(times_s)
    assert times_s[0] >= 0.0
    assert times_s[-1] < 10.0


@pytest.mark.parametrize(
    ("limits", "run"),
    [
        (Limits(None, 10.0), (14, 10.0)),
        (Limits(7, None), (7, 5.0)),
        (Limits(7, 10.0), (7, 5.0)),
        (Limits(100, 10.0), (14, 10.0)),
        (Limits(None, 0.1), (0, 0.1)),
    ],
)
def test_number_and_duration_of_a_run_at_a_rate(limits: Limits, run: tuple[int, float]) -> None:
    assert limits.run_at(1.4) == pytest.approx(run)


def test_impossible_arrivals_are_refused() -> None:
    with pytest.raises(SettingsError, match="burstiness"):
        Arrivals("gamma", burstiness=0.0)


def trace_file(folder: Path, *lines: object) -> Path:
    path = folder / "trace.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines) + "\n")
    return path


def test_a_trace_starts_at_zero_in_order(tmp_path: Path) -> None:
    path = trace_file(
        tmp_path,
        {"timestamp": 9000, "input_length": 600, "output_length": 7, "hash_ids": [1, 2]},
        {"timestamp": 3000, "input_length": 5, "output_length": 1},
    )
    assert read_trace(path) == [TraceLine(0.0, 5, 1, ()), TraceLine(6.0, 600, 7, (1, 2))]


@pytest.mark.parametrize(
    "line",
    [
        {"timestamp": 1, "input_length": 0, "output_length": 1},
        {"timestamp": -1, "input_length": 1, "output_length": 1},
        {"timestamp": 1, "input_length": 1},
        {"timestamp": 1, "input_length": 513, "output_length": 1, "hash_ids": [1]},
        {"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": ["a"]},
        [1],
    ],
)
def test_a_bad_trace_line_is_named(tmp_path: Path, line: object) -> None:
    good = {"timestamp": 1, "input_length": 1, "output_length": 1}
    with pytest.raises(SettingsError, match="line 2"):
        read_trace(trace_file(tmp_path, good, line))


def test_equal_timestamps_are_spread_until_the_next_one() -> None:
    lines = [TraceLine(at_s, 1, 1, ()) for at_s in (0.0, 0.0, 0.0, 3.0, 6.0, 6.0)]
    spread, num_moved = spread_equal_times(lines, random.Random(0))  # noqa: S311
    assert num_moved == 5
    assert all(at.at_s < 3.0 for at in spread[:3])
    assert spread[3].at_s == 3.0
    assert all(6.0 <= at.at_s <= 9.0 for at in spread[4:])
    assert len({line.at_s for line in spread}) == len(lines)


def test_requests_that_do_not_fit_are_left_out_and_counted() -> None:
    lines = [TraceLine(0.0, 10, 5, ()), TraceLine(1.0, 90, 20, ()), TraceLine(2.0, 10, 5, ())]
    fit, num_left_out = fitting(lines, 100, Limits(None, 1.5), 1.0)
    assert ([line.at_s for line in fit], num_left_out) == ([0.0], 1)


def test_equal_hash_ids_are_equal_tokens() -> None:
    prompts = TokenPrompts(range(1000, 9000), seed=5)
    first = json.loads(prompts.of_blocks([7, 8], 1000))
    second = json.loads(prompts.of_blocks([7, 9], 1024))
    assert (len(first), len(second)) == (1000, 1024)
    assert first[:512] == second[:512]
    assert first[512:700] != second[512:700]
    other_run = TokenPrompts(range(1000, 9000), seed=5)
    assert json.loads(other_run.of_blocks([9], 512)) == second[512:]


def test_unique_prompts_share_the_prefix_and_nothing_else() -> None:
    prompts = TokenPrompts(range(1000, 9000), seed=5, num_shared=32)
    one, two = json.loads(prompts.unique(100)), json.loads(prompts.unique(100))
    assert one[:32] == two[:32]
    assert one[32:64] != two[32:64]
    assert json.loads(prompts.unique(10)) == one[:10]
    assert json.loads(prompts.cold(100))[:32] != one[:32]


def test_ids_stay_away_from_the_ends_of_a_vocabulary() -> None:
    llama = safe_ids(128_256)
    assert (llama[0], llama[-1]) == (1000, 128_256 - 128_256 // 16 - 1)
    assert llama[-1] < 128_000  # where Llama 3 keeps its special ids
    assert len(safe_ids(64)) > 0
    with pytest.raises(SettingsError):
        safe_ids(10)


def test_a_chat_has_the_words_its_tokens_cost() -> None:
    prompts = ChatPrompts(WordCost(tokens_per_word=1.5, tokens_around=10.0), seed=0)
    (question,) = json.loads(prompts.unique(310))
    assert question["role"] == "user"
    assert len(question["content"].split()) == 200
    a, b = (json.loads(prompts.of_blocks([3, n], 900))[0]["content"].split() for n in (4, 5))
    assert a[:341] == b[:341]
    assert a != b


def test_a_plan_follows_from_its_seed_and_says_what_was_asked() -> None:
    endpoint = Endpoint("http://127.0.0.1:9/v1")
    template = RequestTemplate(endpoint, {"model": "m", "ignore_eos": True, "temperature": None})

    def plan(seed: int) -> list[bytes]:
        prompts = TokenPrompts(range(1000, 9000), seed)
        planner = Planner(prompts, (Lengths(10, 20), Lengths(5, 5)), seed)
        plan = planner.open_loop(Arrivals(), RATE, Limits(50, None))
        assert plan.offered_per_s == RATE
        requests = plan.requests
        assert all(10 <= request.num_input <= 20 for request in requests)
        return [template.wire(one.prompt, one.num_output) for one in requests]

    assert plan(1) == plan(1) != plan(2)
    head, _, body = plan(1)[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1:9\r\n")
    assert b"content-length: %d" % len(body) in head
    fields = json.loads(body)
    assert fields["max_tokens"] == 5
    assert set(fields) == {"prompt", "max_tokens", "model", "ignore_eos"}


def test_duration_and_number_limit_a_run() -> None:
    ticks = [n / 10 for n in range(100)]
    assert len(list(Limits(None, 2.0).cut(ticks))) == 20
    assert len(list(Limits(3, 2.0).cut(ticks))) == 3


@pytest.mark.parametrize("text", ["0", "5-4", "x", "-3"])
def test_impossible_lengths_are_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="--input"):
        Lengths.parse(text, "--input")


def test_lengths_are_uniform() -> None:
    lengths, rng = Lengths.parse("10-13", "--input"), random.Random(0)  # noqa: S311
    drawn = [lengths.draw(rng) for _ in range(4000)]
    share = 1 / 4
    limit = 4 * math.sqrt(share * (1 - share) / len(drawn))
    assert all(abs(drawn.count(n) / len(drawn) - share) < limit for n in range(10, 14))
