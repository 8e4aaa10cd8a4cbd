"""Quantiles, goodput, the ideal replay and the figures of a run: all against arithmetic by hand."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.cli.bench.gateway.stream_cost import StreamCost, StreamLoad
from services.cli.bench.measure.cpu_time import CpuTime
from services.cli.bench.measure.findings import Finding, render
from services.cli.bench.measure.quantiles import Distribution
from services.cli.bench.serve.calibration import calibration_lengths
from services.cli.bench.serve.load_loop import LoadRun
from services.cli.bench.serve.report.goodput import ServiceLimits
from services.cli.bench.serve.report.ideal_replay import (
    PointPrefill,
    QuadraticPrefill,
    ReplayedRequest,
    fit_prefill,
    replay,
)
from services.cli.bench.serve.report.plot import render_plot
from services.cli.bench.serve.report.summary import Ideal, RunSummary
from services.cli.bench.serve.report.text import render_run, render_sweep
from services.cli.bench.serve.sample import RequestSample

ONE_S = QuadraticPrefill(1e-3, 0.0)
"""a second per 1,000 tokens"""


def answered(
    *chunks_s: float, index: int = 0, scheduled_s: float = 0.0, num_input: int = 1000
) -> RequestSample:
    """A whole answer whose chunks came at these times."""
    sample = RequestSample(index, scheduled_s, num_input, len(chunks_s))
    sample.started_s = sample.sent_s = scheduled_s
    sample.status, sample.end_s = 200, chunks_s[-1]
    sample.chunk_times_s = list(chunks_s)
    sample.chunk_tokens = [1] * len(chunks_s)
    return sample


def refused(index: int = 0) -> RequestSample:
    sample = RequestSample(index, 0.0, 10, 10, status=429, error="http_429", error_text="full")
    sample.end_s = 0.01
    return sample


def summary_of(*samples: RequestSample, **fields: object) -> RunSummary:
    run = LoadRun(0.0, 10.0, list(samples), num_sent=len(samples), loop_lag_s=[0.0] * 100)
    given_fields = {"limits": ServiceLimits(), "max_lag_ms": 10.0, **fields}
    return RunSummary("poisson arrivals 1/s", run, **given_fields)  # type: ignore[arg-type]


def test_quantiles_are_measured_values_by_nearest_rank() -> None:
    values = Distribution.of(range(1, 1001))
    assert [values.at(q) for q in (0.5, 0.9, 0.99, 0.999)] == [500, 900, 990, 999]


@pytest.mark.parametrize(
    ("n", "supported"), [(1, ()), (2, (0.5,)), (10, (0.5, 0.9)), (99, (0.5, 0.9)), (100, (0.99,))]
)
def test_a_quantile_needs_enough_values(n: int, supported: tuple[float, ...]) -> None:
    values = Distribution.of(range(n))
    assert all(values.at(q) is not None for q in supported)
    assert values.at(0.999) is None
    assert (values.at(0.99) is not None) == (n >= 100)


@given(st.lists(st.floats(0, 1e6), min_size=100, max_size=300), st.sampled_from([0.5, 0.9, 0.99]))
def test_a_quantile_has_its_share_at_or_below(values: list[float], q: float) -> None:
    at = Distribution.of(values).at(q)
    assert at in values
    assert sum(value <= at for value in values) / len(values) >= q - 1e-9
    assert sum(value < at for value in values) / len(values) < q


def test_goodput_wants_all_limits_of_one_request() -> None:
    quick = answered(0.1, 0.11, 0.12)
    stalls = answered(0.1, 0.16, 0.17)
    late = answered(0.6, 0.61, 0.62)
    samples = [quick, stalls, late, refused()]
    assert ServiceLimits().num_good(samples) == 3
    assert ServiceLimits(ttft_ms=500).num_good(samples) == 2
    assert ServiceLimits(gap_ms=50).num_good(samples) == 2
    assert ServiceLimits(ttft_ms=500, gap_ms=50).num_good(samples) == 1
    assert ServiceLimits(tpot_ms=34).num_good(samples) == 2


def test_one_gap_in_a_hundred_may_be_long() -> None:
    gaps = [0.01] * 100
    gaps[50] = 1.0
    times_s = [sum(gaps[:at], 1.0) for at in range(len(gaps) + 1)]
    assert ServiceLimits(gap_ms=50).kept_by(answered(*times_s))
    assert not ServiceLimits(gap_ms=50).kept_by(answered(*times_s[1:]))


def test_replay_on_one_server_by_hand() -> None:
    """Arrivals 0, 0.5, 3: the second waits half a second, the third not at all."""
    requests = [ReplayedRequest(at_s, 1000) for at_s in (0.0, 0.5, 3.0)]
    assert replay(requests, ONE_S, 1) == pytest.approx([1.0, 1.5, 1.0])


def test_replay_on_two_servers_by_hand() -> None:
    """Long, short, short: the second server takes both short ones."""
    requests = [
        ReplayedRequest(0.0, 5000),
        ReplayedRequest(0.1, 1000),
        ReplayedRequest(0.2, 2000),
        ReplayedRequest(4.0, 1000),
    ]
    assert replay(requests, ONE_S, 2) == pytest.approx([5.0, 1.0, 2.9, 1.0])


def test_replay_computes_only_what_no_cache_had() -> None:
    prefill = QuadraticPrefill(1e-3, 1e-6)
    (alone,) = replay([ReplayedRequest(0.0, 2000, 1000)], prefill, 1)
    assert alone == pytest.approx(1.0 + (4.0 - 1.0))


def test_the_fit_finds_what_made_the_points() -> None:
    made_by = QuadraticPrefill(2.5e-5, 3.1e-10)
    points = [(length, made_by.seconds(length)) for length in (1000, 4000, 8000, 32_000)]
    fit = fit_prefill(points)
    assert (fit.a_s, fit.b_s) == pytest.approx((made_by.a_s, made_by.b_s))
    assert fit.error == pytest.approx(0.0, abs=1e-9)


def test_no_part_of_the_fit_is_negative() -> None:
    concave = fit_prefill([(100, 0.1), (200, 0.15), (400, 0.2)])
    assert concave.b_s == 0.0 < concave.a_s
    steep = fit_prefill([(100, 0.01), (200, 0.08), (400, 0.64)])
    assert steep.a_s == 0.0 < steep.b_s
    assert fit_prefill([(100, 0.2), (100, 0.2)]).seconds(50) == pytest.approx(0.1)


@given(st.floats(0, 1e-2), st.floats(1e-7, 1e-4), st.floats(0, 1e-9))
def test_the_fit_finds_what_every_prompt_costs(c_s: float, a_s: float, b_s: float) -> None:
    made_by = QuadraticPrefill(a_s, b_s, c_s)
    points = [(length, made_by.seconds(length)) for length in (12, 25, 38, 50, 8000)]
    fit = fit_prefill(points)
    assert fit.error == pytest.approx(0.0, abs=1e-3)
    assert min(fit.a_s, fit.b_s, fit.c_s) >= 0


def test_short_prompts_of_a_small_model_are_a_constant() -> None:
    """Without it the fit of these would be off by more than half."""
    fit = fit_prefill([(12, 0.0100), (25, 0.0102), (37, 0.0101), (50, 0.0103)])
    assert fit.error is not None
    assert fit.error < 0.01
    assert fit.text.startswith("9.95 ms + ")


def test_no_ratio_to_an_ideal_that_is_not_known() -> None:
    samples = [answered(at + 1.5, at + 2.0, index=at, scheduled_s=float(at)) for at in range(4)]
    rough = summary_of(*samples, ideal=Ideal(QuadraticPrefill(1e-3, 0.0, error=0.73), 1))
    assert rough.ideal_ratio(0.5) is None
    assert "off their fit by 73%" in rough.record()["ideal"]["ratio_left_out"]
    assert "  measured / ideal" not in render_run(rough)
    assert "no measured / ideal" in render_run(rough)
    fine = summary_of(*samples, ideal=Ideal(QuadraticPrefill(1e-3, 0.0, error=0.3), 1))
    assert fine.ideal_ratio(0.5) == pytest.approx(1.5)
    assert "  measured / ideal" in render_run(fine)


def test_answers_of_which_only_the_end_was_seen_are_noted() -> None:
    sample = answered(1.0)
    sample.without_text = True
    assert "1 answers are tokens without text" in render_run(summary_of(sample))
    assert "without text" not in render_run(summary_of(answered(1.0)))


def test_given_points_are_joined_by_lines() -> None:
    points = PointPrefill(((1000, 0.02), (3000, 0.08)))
    assert points.seconds(500) == pytest.approx(0.01)
    assert points.seconds(2000) == pytest.approx(0.05)
    assert points.seconds(4000) == pytest.approx(0.11)
    assert points.seconds(2000, num_cached=1000) == pytest.approx(0.03)


def test_calibration_covers_the_workload() -> None:
    assert calibration_lengths([1000, 3000, 200]) == [200, 1133, 2067, 3000]
    assert calibration_lengths([1024]) == [256, 512, 768, 1024]
    assert calibration_lengths([1]) == [1]


def test_latency_counts_from_the_scheduled_time() -> None:
    """A client that is 0.2 s late makes its user wait 0.2 s longer."""
    sample = answered(1.0, 1.1, 1.3, scheduled_s=0.5)
    sample.started_s = sample.sent_s = 0.7
    assert sample.ttft_s == pytest.approx(0.5)
    assert sample.ttft_sent_s == pytest.approx(0.3)
    assert sample.send_lag_s == pytest.approx(0.2)
    assert sample.e2e_s == pytest.approx(0.8)
    assert sample.tpot_s == pytest.approx(0.15)


def test_a_chunk_of_several_tokens_is_not_a_short_gap() -> None:
    """Five tokens in two later chunks: gaps of chunks stay, those of tokens are shared out."""
    sample = answered(1.0, 1.3, 1.5)
    sample.counted_from, sample.chunk_tokens, sample.completion_tokens = "continuous", [1, 3, 2], 6
    assert sample.gaps_s == pytest.approx([0.3, 0.2])
    assert sample.spread_gaps_s == pytest.approx([0.1] * 5)
    assert sample.tpot_s == pytest.approx(0.1)
    summary = summary_of(sample)
    assert summary.several_per_chunk
    assert "2.00 tokens on average" in render_run(summary)


def test_figures_of_a_run() -> None:
    samples = [answered(at + 1.5, at + 2.0, index=at, scheduled_s=float(at)) for at in range(4)]
    ideal = Ideal(QuadraticPrefill(1e-3, 0.0), 1)
    summary = summary_of(*samples, refused(4), ideal=ideal, limits=ServiceLimits(ttft_ms=2000))
    record = summary.record()
    assert record["num_ok"] == 4
    assert record["errors"] == {"http_429": 1}
    assert record["ttft_ms"]["p50"] == pytest.approx(1500)
    assert record["ttft_ms"]["p99"] is None
    assert record["ideal"]["ttft_ms"]["p50"] == pytest.approx(1000)
    assert record["ideal"]["ratio_p50"] == pytest.approx(1.5)
    assert record["goodput"] == {
        "limits": "TTFT <= 2000 ms",
        "requests_per_s": 0.4,
        "share_of_sent": 0.8,
    }
    assert record["output_tokens_per_s"] == pytest.approx(0.8)
    text = render_run(summary)
    assert "4 answered, 1 refused (http_429)\n" in text
    assert "1.50x" in text
    header, row, _ = render_sweep([summary, summary]).splitlines()
    assert "poisson" in row
    assert header.split()[:4] == ["load", "ok/sent", "429", "failed"]
    assert row.split()[3:6] == ["4/5", "1", "0"]


def test_a_closed_loop_says_so_and_has_no_ideal() -> None:
    summary = summary_of(answered(1.0, 2.0), closed=True, ideal=Ideal(ONE_S, 1))
    assert summary.record()["loop"] == "closed"
    assert summary.ideal_ttft is None
    assert "CLOSED" in render_run(summary)


def test_a_slow_client_is_told_from_a_slow_server() -> None:
    honest = summary_of(answered(5.0, 9.0))
    assert not honest.client_fault
    late = answered(5.0, 9.0)
    late.started_s = 0.05
    assert "sends were late: p99 50.0 ms" in summary_of(late).client_fault
    busy = summary_of(answered(5.0, 9.0))
    busy.run.loop_lag_s = [0.02] * 100
    assert "loop was late" in busy.client_fault
    hot = summary_of(answered(5.0, 9.0))
    hot.run.client_cpu_share = 0.95
    assert "95% of a core" in hot.client_fault
    assert "INVALID" in render_run(hot)


def test_the_plot_holds_every_part() -> None:
    rng = random.Random(0)  # noqa: S311
    samples = [
        answered(at + rng.random(), at + 2.0, at + 3.0, index=at, scheduled_s=float(at))
        for at in range(900)
    ]
    text = render_plot("a <model>", [summary_of(*samples, refused(900), ideal=Ideal(ONE_S, 1))])
    assert text.startswith("<svg") and text.endswith("</svg>\n")
    assert "a &lt;model&gt;" in text
    for part in ("Time to first token", "its ideal replay", "Token gaps", "streaming", "failed"):
        assert part in text
    assert len(text) < 400_000


def test_the_plot_marks_limits_and_what_is_invalid() -> None:
    limits = ServiceLimits(ttft_ms=250, gap_ms=12.5)
    valid, invalid = (summary_of(answered(1.0, 2.0), limits=limits) for _ in range(2))
    invalid.run.client_cpu_share = 0.95
    text = render_plot("m", [valid, invalid])
    assert text.count("(INVALID)") == 4  # the title, two legends, the timeline
    assert "limit: 250 ms" in text
    assert "limit of a request&#x27;s p99: 12.5 ms" in text
    assert "limit" not in render_plot("m", [summary_of(answered(1.0, 2.0))])


def test_labels_of_upright_axes_stand_beside_their_charts() -> None:
    """At the corner they would run into the title."""
    text = render_plot("m", [summary_of(answered(1.0, 2.0))])
    labels = [line for line in text.splitlines() if "rotate(-90)" in line]
    assert [line.rpartition("</text>")[0].rpartition(">")[2] for line in labels] == [
        "share",
        "share",
        "request",
    ]


def cost_of(**fields: Any) -> StreamCost:
    """A quiet run of 8 s; `fields` disturb it."""
    quiet: dict[str, Any] = {
        "load": StreamLoad(256, 320, 25.0),
        "added_s": Distribution.of([2e-4] * 100),
        "num_tokens": 80_000,
        "num_events": 80_000,
        "window_s": 8.0,
        "gateway": CpuTime(1.5, 0.5, 0.05),
        "client_share": 0.1,
        "workers_share": 0.06,
        "client_late": Distribution.of([5e-4] * 800),
        "stolen_s": 0.0,
        "own_core": True,
        "failed": (),
    }
    return StreamCost(**(quiet | fields))


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"gateway": CpuTime(0.1, 0.0, 7.5), "num_events": 1200}, "no core 94% of the time"),
        ({"client_late": Distribution.of([4.0, 3.5])}, "the client read late"),
        ({"client_late": Distribution.of([0.001] * 400 + [1.0])}, "late 18% of the time"),
        ({"stolen_s": 2.0}, "the host gave 25%"),
    ],
)
def test_a_disturbed_measurement_is_invalid(fields: dict[str, Any], says: str) -> None:
    cost = cost_of(**fields)
    assert says in cost.fault
    assert not cost.stall


def test_a_gateway_that_stands_still_of_itself_is_its_own_fault() -> None:
    """67 tokens a chunk, but a core was free for it and the client was in time."""
    still = cost_of(num_events=1200, gateway=CpuTime(0.1, 0.0, 0.01))
    assert not still.fault
    assert "stood still now and then: it had a core, used 1%" in still.circumstances
    assert "was overloaded" in cost_of(num_events=1200, gateway=CpuTime(7.9, 2, 0.1)).stall
    one_long_stop = cost_of(added_s=Distribution.of([2e-4] * 90 + [5.0] * 10))
    assert "stood still" in one_long_stop.stall  # it may write each token alone afterwards
    assert not cost_of().fault
    assert not cost_of().stall


def test_an_invalid_figure_meets_and_misses_nothing() -> None:
    figure = Finding("streams", "latency", 2056.0, "ms", 0.35, note="n", invalid="no core")
    assert figure.met is None
    assert figure.record()["invalid"] == "no core"
    text = render([figure, figure])
    assert "MISSED" not in text
    assert text.count("INVALID: no core; n") == 1  # a shared note stands once


def test_a_figure_is_judged_by_its_goal() -> None:
    low = Finding("rate", "latency", 0.3, "ms", 0.35)
    high = Finding("rate", "rate", 30_000, "1/s", 35_000, ">=", note="so it was")
    shown = Finding("rate", "only shown", 1.0, "ms")
    assert [one.met for one in (low, high, shown)] == [True, False, None]
    assert high.record()["goal"] == ">= 35000"
    text = render([low, high, shown])
    assert "MISSED" in text
    assert "[1] so it was" in text
