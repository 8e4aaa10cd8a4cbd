"""`baton bench serve` against endpoints whose times are known, and against a real gateway."""

import json
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from services.cli.__main__ import main
from services.cli.bench.serve.client.answer_account import AnswerAccount
from shared.state.embedded import EmbeddedRedis
from tests.support.fakes.mock_cell import mock_cell
from tests.support.fakes.scripted_endpoint import FIRST_MS, GAP_MS, STALL_MS, scripted
from tests.support.measured import Measured
from tests.support.redis_server import ON_PATH, server_binary

pytestmark = pytest.mark.clock

SLACK_MS = 12.0
"""of a median on a busy machine"""
QUICK = ("--max-lag-ms", "1000", "--warmup", "0", "--duration", "60")


def bench(
    port: int, tmp_path: Path, *flags: str, code: int = 0
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Summaries and requests of a run."""
    path = tmp_path / "bench.jsonl"
    words = ["bench", "serve", "--url", f"http://127.0.0.1:{port}", *QUICK, "--json", str(path)]
    assert main([*words, *flags]) == code
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[0]["kind"] == "environment"
    by_kind = {kind: [line for line in lines if line["kind"] == kind] for kind in KINDS}
    return by_kind["summary"], by_kind["request"]


KINDS = ("summary", "request")
SHORT = ("--vocab", "1000", "--input", "100", "--output", "20")
PLAIN = (*SHORT, "--no-ideal")


def test_figures_of_an_endpoint_whose_times_are_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with scripted() as endpoint:
        plot = tmp_path / "run.svg"
        flags = ("--rate", "40", "--num-requests", "40", "--plot", str(plot), *PLAIN)
        limits = ("--ttft-limit-ms", "1000", "--gap-limit-ms", "0.5")
        (summary,), requests = bench(endpoint.port, tmp_path, *flags, *limits)
    assert (summary["num_sent"], summary["num_ok"], summary["loop"]) == (40, 40, "open")
    assert FIRST_MS <= summary["ttft_from_send_ms"]["p50"] <= FIRST_MS + SLACK_MS
    assert summary["ttft_from_send_ms"]["p50"] <= summary["ttft_ms"]["p50"]
    assert GAP_MS <= summary["chunk_gap_ms"]["p50"] <= GAP_MS + SLACK_MS / 2
    assert GAP_MS <= summary["tpot_ms"]["p50"] <= GAP_MS + SLACK_MS
    assert summary["chunk_gap_ms"]["n"] == 40 * 19
    assert summary["ttft_ms"]["p99"] is None
    assert summary["goodput"]["requests_per_s"] == 0.0
    assert {request["input_tokens"] for request in requests} == {100}
    assert "token gap, ms" in capsys.readouterr().out
    assert ElementTree.fromstring(plot.read_text()).tag.endswith("svg")  # noqa: S314 our own file


def test_a_planted_stall_shows_in_the_tail_of_the_gaps(tmp_path: Path) -> None:
    """Two of 119 gaps are 50 ms longer: p99 shows it and the median does not."""
    flags = ("--rate", "100", "--num-requests", "8", *PLAIN, "--output", "120")
    with scripted(gap_ms=1.0, stall_every=45) as endpoint:
        (stalled,), _ = bench(endpoint.port, tmp_path, *flags)
    assert stalled["chunk_gap_ms"]["p99"] >= STALL_MS
    assert stalled["chunk_gap_ms"]["p50"] < STALL_MS / 2
    with scripted(gap_ms=1.0) as endpoint:
        (smooth,), _ = bench(endpoint.port, tmp_path, *flags)
    assert smooth["chunk_gap_ms"]["p99"] < STALL_MS


def test_a_slow_client_is_flagged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    read = AnswerAccount.feed

    def read_slowly(self: AnswerAccount, received: bytes, now_s: float) -> None:
        read(self, received, now_s)
        time.sleep(0.02)

    flags = ("--rate", "50", "--num-requests", "10", *PLAIN, "--output", "5")
    monkeypatch.setattr(AnswerAccount, "feed", read_slowly)
    with scripted() as endpoint:
        (summary,), _ = bench(endpoint.port, tmp_path, *flags, "--max-lag-ms", "15", code=1)
    assert "late" in summary["client_fault"]
    output = capsys.readouterr()
    assert "INVALID" in output.out
    assert "the client was the bottleneck" in output.err


def test_the_ideal_of_a_first_come_server_is_what_it_does(tmp_path: Path) -> None:
    """An endpoint that computes one prompt at a time is its own ideal replay."""
    with scripted(first_ms=0.0, gap_ms=0.0, per_1k_ms=100.0) as endpoint:
        flags = ("--rate", "32", "--num-requests", "60", "--vocab", "1000", "--seed", "4")
        lengths = ("--input", "100-300", "--output", "2")
        (summary,), _ = bench(endpoint.port, tmp_path, *flags, *lengths)
    ideal = summary["ideal"]
    assert ideal["num_servers"] == 1
    assert ideal["ratio_p50"] == pytest.approx(1.0, abs=0.25)
    assert summary["ttft_ms"]["max"] > 1.5 * 0.3 * 100.0  # there was a queue to replay


def test_a_sweep_errors_and_kept_connections_that_close(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with scripted(first_ms=1.0, gap_ms=0.0, refuse_every=5, hang_up_after=3) as endpoint:
        flags = ("--rate", "50,100", "--num-requests", "20", *PLAIN)
        summaries, requests = bench(endpoint.port, tmp_path, *flags, code=1)
    assert [summary["errors"] for summary in summaries] == [{"http_429": 4}] * 2
    refused = next(request for request in requests if request["error"])
    assert (refused["status"], refused["error_text"]) == (429, "full")
    output = capsys.readouterr()
    assert "out tok/s" in output.out
    assert output.err.count("4 of 20 were refused (http_429: full)") == 2
    assert "16 answered, 4 refused (http_429)\n" in output.out
    assert [(one["num_refused"], one["num_failed"]) for one in summaries] == [(4, 0)] * 2
    ended = "answered 16, refused 4, failed 0"
    progress = [line for line in output.err.splitlines() if line.endswith(ended)]
    assert [line.partition(":")[0] for line in progress] == [
        "poisson arrivals 50/s",
        "poisson arrivals 100/s",
    ]


def test_answers_without_text_are_measured_and_calibrated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with scripted(textless=True, gap_ms=1.0) as endpoint:
        flags = ("--rate", "50", "--num-requests", "5", *SHORT, "--ignore-eos")
        (summary,), requests = bench(endpoint.port, tmp_path, *flags)
    assert (summary["num_ok"], summary["num_without_text"], summary["errors"]) == (5, 5, {})
    assert {request["output_tokens"] for request in requests} == {20}
    assert summary["ttft_from_send_ms"]["p50"] >= FIRST_MS + 19 * 1.0
    assert summary["ideal"]["num_servers"] == 1
    assert "tokens without text" in capsys.readouterr().out


@pytest.mark.parametrize("more", [(), ("--vocab", "1000")])
def test_an_unknown_model_is_said_in_the_endpoints_words(
    more: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with scripted() as endpoint:
        url = f"http://127.0.0.1:{endpoint.port}"
        assert main(["bench", "serve", "--url", url, "--model", "nonesuch", *more]) == 1
    said = capsys.readouterr().err
    assert "404: no model nonesuch; it lists no model 'nonesuch', but scripted" in said


def test_a_closed_loop_keeps_its_slots_busy(tmp_path: Path) -> None:
    with scripted() as endpoint:
        flags = ("--concurrency", "4", "--num-requests", "12", *PLAIN)
        (summary,), _ = bench(endpoint.port, tmp_path, *flags)
    assert (summary["loop"], summary["num_ok"]) == ("closed", 12)
    three_rounds_s = 3 * (FIRST_MS + 19 * GAP_MS) / 1e3
    assert three_rounds_s <= summary["seconds"] <= 2 * three_rounds_s


def test_a_trace_shares_what_it_says(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    lines = [
        {"timestamp": 0, "input_length": 600, "output_length": 2, "hash_ids": [1, 2]},
        {"timestamp": 400, "input_length": 700, "output_length": 3, "hash_ids": [1, 3]},
        {"timestamp": 800, "input_length": 4999, "output_length": 9, "hash_ids": list(range(10))},
    ]
    trace.write_text("\n".join(map(json.dumps, lines)))
    with scripted(first_ms=1.0) as endpoint:
        flags = ("--trace", str(trace), "--speed", "4", "--vocab", "1000", "--no-ideal")
        (summary,), requests = bench(endpoint.port, tmp_path, *flags)
    assert summary["num_sent"] == 2  # the third is longer than the model
    first, second = endpoint.prompts
    assert (len(first), len(second)) == (600, 700)
    assert first[:512] == second[:512]
    assert first[512:600] != second[512:600]
    times_ms = [request["scheduled_ms"] for request in requests]
    assert times_ms[1] - times_ms[0] == pytest.approx(100.0, abs=0.1)


def test_the_key_is_sent_and_never_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SOME_KEY", "s3cret")
    with scripted(first_ms=0.0, gap_ms=0.0) as endpoint:
        flags = ("--rate", "50", "--num-requests", "2", "--api-key-env", "SOME_KEY", *PLAIN)
        bench(endpoint.port, tmp_path, *flags)
    assert endpoint.keys == {"bearer s3cret"}
    assert "s3cret" not in capsys.readouterr().out + (tmp_path / "bench.jsonl").read_text()


@pytest.mark.parametrize(
    ("flags", "code", "says"),
    [
        (("--rate", "1", "--concurrency", "2"), 2, "name one of them"),
        (("--rate", "0"), 2, "more than 0"),
        (("--plot", "x.png"), 2, ".svg"),
        (("--trace", "no-such-file"), 2, "no-such-file"),
        (("--api-key-env", "NOT_SET_HERE"), 2, "not set"),
        (("--input", "4990", "--output", "20", "--vocab", "1000"), 2, "do not fit"),
        ((), 2, "--vocab"),
    ],
)
def test_a_bad_flag_says_what_to_do(
    flags: tuple[str, ...], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with scripted() as endpoint:
        url = f"http://127.0.0.1:{endpoint.port}"
        assert main(["bench", "serve", "--url", url, *flags]) == code
    assert says in capsys.readouterr().err


def test_nobody_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "serve", "--url", "http://127.0.0.1:1"]) == 4
    assert "--url" in capsys.readouterr().err


@pytest.mark.alone
def test_a_real_gateway(tmp_path: Path, measured: Measured) -> None:
    """Vocabulary, model and prefill servers are asked from it; its receipts agree."""
    with (
        EmbeddedRedis(server_binary(ON_PATH)) as redis,
        mock_cell(redis.url, tmp_path, step_ms=5.0) as cell,
    ):
        port = int(cell.url.rpartition(":")[2])
        flags = ("--rate", "40", "--num-requests", "30", "--input", "50-200", "--output", "20")
        (summary,), requests = bench(port, tmp_path, *flags, "--ignore-eos", "--continuous-usage")
        receipts = [cell.get(f"/v1/baton/requests/{request['id']}") for request in requests]
    assert (summary["num_ok"], summary["errors"]) == (30, {})
    environment = json.loads((tmp_path / "bench.jsonl").read_text().splitlines()[0])
    workers = environment["endpoint"]["status_after"]["workers"]
    assert sorted(worker["role"] for worker in workers) == ["decode", "prefill"]
    assert {request["output_tokens"] for request in requests} == {20}
    assert all(50 <= request["input_tokens"] <= 200 for request in requests)
    assert summary["ideal"]["num_servers"] == 1
    assert 3.0 <= summary["tpot_ms"]["p50"] <= 5.0 + SLACK_MS
    outside_ms = [
        request["ttft_ms"] - (receipt["first_token_ns"] - receipt["received_ns"]) / 1e6
        for request, receipt in zip(requests, receipts, strict=True)
    ]
    assert min(outside_ms) >= 0.0
    # A busy machine adds to many of them; what the benchmark itself adds, or lets grow, is in all.
    measured.at_most(
        "outside the gateway, least of the first ten", min(outside_ms[:10]), SLACK_MS, "ms"
    )
    measured.at_most(
        "outside the gateway, least of the last ten", min(outside_ms[-10:]), SLACK_MS, "ms"
    )
