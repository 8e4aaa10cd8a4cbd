"""What the answers of a run cost by their receipts.

Guarded against: answers that tell nothing and count as free, and a receipt that is not asked for.
"""

import json

import pytest

from services.cli.bench.serve.client.answer_account import AnswerAccount
from services.cli.bench.serve.endpoint import Endpoint
from services.cli.bench.serve.load_loop import LoadRun
from services.cli.bench.serve.report.cost import Cost
from services.cli.bench.serve.report.goodput import ServiceLimits
from services.cli.bench.serve.report.summary import RunSummary
from services.cli.bench.serve.report.text import render_run
from services.cli.bench.serve.sample import RequestSample


def answer(gpu_ms: float | None, saved_gpu_ms: float | None) -> RequestSample:
    sample = RequestSample(0, 0.0, 10, 1, status=200, gpu_ms=gpu_ms, saved_gpu_ms=saved_gpu_ms)
    sample.chunk_times_s, sample.chunk_tokens, sample.end_s = [0.5], [1], 0.5
    return sample


def test_gpu_times_are_summed_and_priced() -> None:
    """A minute at 6 USD an hour is 0.1 USD."""
    told = [answer(45_000.0, 5_000.0), answer(15_000.0, 10_000.0), answer(None, None)]
    cost = Cost.of(told, 6.0)
    assert (cost.num_told, cost.num_answers) == (2, 3)
    assert cost.record() == {"num_told": 2, "usd": 0.1, "saved_usd": 0.025}
    assert cost.saved_share == pytest.approx(0.2)
    assert cost.text == (
        "0.1 USD of GPU time for 2 of 3 answers; "
        "the prefix cache saved 0.025 USD (20.0% of what there was to pay)"
    )


@pytest.mark.parametrize("told", [[], [answer(None, None)], [answer(1.0, None)]])
def test_what_no_answer_tells_is_not_free(told: list[RequestSample]) -> None:
    cost = Cost.of(told, 6.0)
    assert cost.record() == {"num_told": 0, "usd": None, "saved_usd": None}
    assert cost.text.startswith("not known: ")


def test_the_report_has_the_cost_only_where_a_price_was_given() -> None:
    run = LoadRun(0.0, 1.0, [answer(45_000.0, 5_000.0)], num_sent=1, loop_lag_s=[0.0])
    priced = RunSummary("1/s", run, ServiceLimits(), 10.0, usd_per_gpu_hour=6.0)
    unpriced = RunSummary("1/s", run, ServiceLimits(), 10.0)
    assert "cost                      0.075 USD of GPU time for 1 of 1" in render_run(priced)
    assert priced.record()["cost"]["usd"] == 0.075
    assert "cost" not in render_run(unpriced)
    assert "cost" not in unpriced.record()


def test_a_receipt_is_asked_for_with_a_price_and_read_from_the_last_chunk() -> None:
    assert Endpoint("http://h", usd_per_gpu_hour=1.0).headers["x-baton-receipt"] == "1"
    assert "x-baton-receipt" not in Endpoint("http://h").headers
    sample = RequestSample(0, 0.0, 10, 1)
    account = AnswerAccount(sample)
    last = {"choices": [], "usage": {}, "baton": {"gpu_ms": 4.5, "saved_gpu_ms": 0.25}}
    for event in ({"choices": [{"text": "x"}]}, last):
        account.feed(b"data: " + json.dumps(event).encode() + b"\n\n", 1.0)
    assert (sample.gpu_ms, sample.saved_gpu_ms) == (4.5, 0.25)
    assert sample.record(0.0)["gpu_ms"] == 4.5
