"""Two endpoints' figures of one load point: ratios, the better one, and when neither is said."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.cli.bench.serve.load_loop import LoadRun
from services.cli.bench.serve.report.comparison import ComparedFigure, Comparison
from services.cli.bench.serve.report.goodput import ServiceLimits
from services.cli.bench.serve.report.plot import render_plot
from services.cli.bench.serve.report.summary import RunSummary
from services.cli.bench.serve.report.text import render_comparison
from services.cli.bench.serve.sample import RequestSample


def summary_of(
    endpoint: str, first_s: float, *, num: int = 100, late_s: float = 0.0, per_chunk: int = 1
) -> RunSummary:
    """`num` answers of 11 chunks, 0.1 s apart, the first after `first_s`."""
    samples = []
    for index in range(num):
        times_s = [first_s + 0.1 * at for at in range(11)]
        sample = RequestSample(index, 0.0, 100, 11 * per_chunk, status=200)
        sample.chunk_times_s, sample.chunk_tokens = times_s, [1] * 11
        sample.completion_tokens, sample.end_s = 11 * per_chunk, times_s[-1]
        samples.append(sample)
    run = LoadRun(0.0, 10.0, samples, num_sent=num, loop_lag_s=[late_s] * 100)
    limits = ServiceLimits(ttft_ms=250.0)
    return RunSummary("8/s", run, limits, max_lag_ms=10.0, endpoint=endpoint)


def figures_of(comparison: Comparison) -> dict[str, ComparedFigure]:
    return {figure.name: figure for figure in comparison.figures}


def test_times_are_better_when_less_and_rates_when_more() -> None:
    figures = figures_of(Comparison(summary_of("ours", 0.2), summary_of("theirs", 0.4)))
    ttft = figures["TTFT p99, ms"]
    assert (ttft.ours, ttft.theirs) == pytest.approx((200.0, 400.0))
    assert ttft.ratio == pytest.approx(0.5)
    assert ttft.better == "ours"
    assert figures["token gap p50, ms"].better == "equal"
    assert figures["goodput, requests/s"].theirs == 0.0
    assert figures["goodput, requests/s"].ratio is None  # nothing is divided by zero
    assert figures["goodput, requests/s"].better == "ours"
    fewer = Comparison(summary_of("ours", 0.2, num=50), summary_of("theirs", 0.2))
    assert figures_of(fewer)["requests/s"].better == "theirs"
    assert figures_of(fewer)["TTFT p99, ms"].ratio is None  # fifty have no p99


@pytest.mark.parametrize("late", ["ours", "theirs"])
def test_an_invalid_point_has_values_but_no_ratio(late: str) -> None:
    ours, theirs = (
        summary_of(name, 0.2, late_s=1.0 if name == late else 0.0) for name in ("ours", "theirs")
    )
    comparison = Comparison(ours, theirs)
    assert all(figure.ratio is None for figure in comparison.figures)
    assert figures_of(comparison)["TTFT p50, ms"].ours is not None
    text = render_comparison(comparison)
    assert f"no ratios: {late} INVALID" in text
    assert "x  " not in text


def test_gaps_of_chunks_are_not_compared_with_gaps_of_tokens() -> None:
    comparison = Comparison(summary_of("ours", 0.2), summary_of("theirs", 0.2, per_chunk=4))
    figures = figures_of(comparison)
    assert figures["chunk gap p50, ms"].ratio is None
    assert figures["TTFT p50, ms"].ratio == 1.0
    assert "a chunk has several tokens" in render_comparison(comparison)


def test_fewer_answers_and_cached_prompts_are_noted() -> None:
    ours, theirs = summary_of("ours", 0.2), summary_of("theirs", 0.2)
    ours.run.num_sent = 150
    theirs.run.samples[0].cached_tokens = 64
    notes = " ".join(Comparison(ours, theirs).notes)
    assert "ours answered 100 of 150" in notes
    assert "0 at ours, 64 at theirs" in notes


def test_the_table_names_both_values_their_ratio_and_the_better_one() -> None:
    text = render_comparison(Comparison(summary_of("ours", 0.3), summary_of("theirs", 0.2)))
    (row,) = [line for line in text.splitlines() if line.startswith("TTFT p50")]
    assert row.split() == ["TTFT", "p50,", "ms", "300", "200", "1.50x", "theirs"]


def test_the_plot_has_a_timeline_of_each() -> None:
    text = render_plot("m", [summary_of("ours", 0.2), summary_of("theirs", 0.4)])
    assert "Requests of ours, 8/s, one line each" in text
    assert "Requests of theirs, 8/s, one line each" in text


@given(st.floats(0.001, 1e6), st.floats(0.001, 1e6), st.booleans())
def test_who_is_better_does_not_depend_on_who_is_first(
    ours: float, theirs: float, more: bool
) -> None:
    swap = {"ours": "theirs", "theirs": "ours"}
    one = ComparedFigure("f", ours, theirs, more_is_better=more).better
    other = ComparedFigure("f", theirs, ours, more_is_better=more).better
    if "equal" not in (one, other):
        assert swap[str(one)] == other
