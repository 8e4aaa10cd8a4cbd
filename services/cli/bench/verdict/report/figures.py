"""The charts of a verdict."""

from collections.abc import Callable, Sequence

from services.cli.bench.verdict.report.point import Point, points_of
from services.cli.bench.verdict.verdict import Verdict
from shared.plot.axis import Axis
from shared.plot.chart import NUM_COLOURS, Chart

LIMIT = 8
"""colour of a limit's line"""
TAIL = 0.99


def attainment_chart(verdict: Verdict) -> Chart:
    """Share of requests within the limits."""
    points = _points(verdict)
    shares = [100 * one.share for one in points]
    wanted = 100 * verdict.contest.rules.wanted
    low = max(0.0, min([*shares, wanted]) - 5)
    chart = Chart(_rates(points), Axis("requests within the limits, %", low, 101.0))
    _draw(chart, verdict, lambda point: 100 * point.share)
    chart.line([(chart.x.low, wanted), (chart.x.high, wanted)], LIMIT, "wanted", dash="6 4")
    return chart


def time_chart(
    verdict: Verdict,
    label: str,
    read: Callable[[Point, float], float | None],
    limit_ms: float | None,
) -> Chart:
    """Median (dashed) and p99 of a time."""
    points = _points(verdict)
    times = [ms for one in points for q in (0.5, TAIL) if (ms := read(one, q))]
    low = min(times, default=1.0)
    high = max([*times, limit_ms or low, low])
    chart = Chart(_rates(points), Axis(f"{label}, ms", low / 1.5, high * 1.5, log=True))
    _draw(chart, verdict, lambda point: read(point, TAIL), " p99")
    _draw(chart, verdict, lambda point: read(point, 0.5), " p50", dash="2 3")
    if limit_ms is not None:
        ends = [(chart.x.low, limit_ms), (chart.x.high, limit_ms)]
        chart.line(ends, LIMIT, f"limit {limit_ms:g} ms", dash="6 4")
    return chart


def goodput_chart(verdict: Verdict) -> Chart:
    """A bar for each topology, and its interval."""
    goodputs = verdict.judgement.goodputs
    most = max((one.high for one in goodputs.values()), default=1.0)
    chart = Chart(
        Axis("", 0.0, float(max(len(goodputs), 1)), bare=True),
        Axis("goodput, requests/s", 0.0, 1.15 * most),
    )
    for at, (topology, (value, low, high)) in enumerate(goodputs.items()):
        middle = at + 0.5
        chart.bar((middle, value), colour_of(verdict, topology), 0.5)
        chart.line([(middle, low), (middle, high)], NUM_COLOURS - 1)
        for end in (low, high):
            chart.line([(middle - 0.04, end), (middle + 0.04, end)], NUM_COLOURS - 1)
        chart.write((middle, high), f"{topology}: {verdict.judgement.goodput_text(topology)}")
    return chart


def colour_of(verdict: Verdict, topology: str) -> int:
    return list(verdict.contest.rules.sides).index(topology) % LIMIT


def _draw(
    chart: Chart,
    verdict: Verdict,
    read: Callable[[Point], float | None],
    suffix: str = "",
    dash: str = "",
) -> None:
    for topology in verdict.contest.rules.sides:
        values = [(one.rate, read(one)) for one in points_of(topology, verdict.contest.runs)]
        known = [(rate, value) for rate, value in values if value is not None]
        chart.line(known, colour_of(verdict, topology), topology + suffix, dash)


def _points(verdict: Verdict) -> list[Point]:
    runs = verdict.contest.runs
    return [one for topology in verdict.contest.rules.sides for one in points_of(topology, runs)]


def _rates(points: Sequence[Point]) -> Axis:
    rates = [one.rate for one in points]
    return Axis("requests/s", min(rates, default=1.0) * 0.9, max(rates, default=2.0) * 1.1, True)
