"""The picture of a run: how time to first token and gaps are spread, and the run over time."""

from collections.abc import Sequence

from services.cli.bench.measure.quantiles import Distribution
from services.cli.bench.serve.report.summary import RunSummary
from services.cli.bench.serve.report.svg import COLOURS, Panel, picture
from shared.plot.axis import Axis, Point

MAX_POINTS = 400
MAX_BARS = 400
WAITING, STREAMING, FAILED = "#e69f00", "#0072b2", "#cc0000"
LIMIT = "#cc0000"
TIMELINE_TOP, TIMELINE_HEIGHT, TIMELINE_STEP = 420, 270, 340


def render_plot(title: str, summaries: Sequence[RunSummary]) -> str:
    """SVG of all load points; a timeline of each endpoint's last one."""
    last = {summary.endpoint: summary for summary in summaries}
    timelines = [
        _timeline(one, TIMELINE_TOP + at * TIMELINE_STEP) for at, one in enumerate(last.values())
    ]
    panels = [_ttft_panel(summaries), _gap_panel(summaries), *timelines]
    height = TIMELINE_TOP + len(timelines) * TIMELINE_STEP
    labels = ", ".join(summary.marked_title for summary in summaries)
    return picture(f"{title}: {labels}", panels, 1000, height)


def _ttft_panel(summaries: Sequence[RunSummary]) -> Panel:
    ideals = [one for s in summaries if (one := s.ideal_ttft) is not None]
    limit_ms = summaries[-1].limits.ttft_ms
    x = _log_axis("time to first token, ms", [s.ttft for s in summaries] + ideals, limit_ms)
    panel = Panel("Time to first token", x, _shares(), left=70, top=80)
    for summary, colour in zip(summaries, _colours(summaries), strict=True):
        panel.line(_curve(summary.ttft, 1e3), colour, summary.marked_title)
        if summary.ideal_ttft is not None:
            panel.line(_curve(summary.ideal_ttft, 1e3), colour, "its ideal replay", dashed=True)
    _draw_limit(panel, limit_ms, "")
    return panel


def _gap_panel(summaries: Sequence[RunSummary]) -> Panel:
    name = "chunk gap" if any(s.several_per_chunk for s in summaries) else "token gap"
    limit_ms = summaries[-1].limits.gap_ms
    x = _log_axis(f"{name}, ms", [s.gap for s in summaries], limit_ms)
    panel = Panel(f"{name.capitalize()}s", x, _shares(), left=570, top=80)
    for summary, colour in zip(summaries, _colours(summaries), strict=True):
        panel.line(_curve(summary.gap, 1e3), colour, summary.marked_title)
    _draw_limit(panel, limit_ms, " of a request's p99")
    return panel


def _timeline(summary: RunSummary, top: float) -> Panel:
    run = summary.run
    samples = run.samples[:: len(run.samples) // MAX_BARS + 1]
    panel = Panel(
        f"Requests of {summary.marked_title}, one line each",
        Axis("seconds", 0.0, max(run.seconds, 1e-3)),
        Axis("request", 0.0, float(max(run.num_sent, 1))),
        left=70,
        top=top,
        width=860,
        height=TIMELINE_HEIGHT,
    )
    thickness = min(max(TIMELINE_HEIGHT / max(len(samples), 1) * 0.8, 0.5), 8.0)
    for sample in samples:
        row = sample.index + 0.5
        start, end = sample.scheduled_s - run.start_s, sample.end_s - run.start_s
        if not sample.ok:
            panel.bar((start, row), (end, row), FAILED, thickness)
            continue
        first = sample.chunk_times_s[0] - run.start_s
        panel.bar((start, row), (first, row), WAITING, thickness)
        panel.bar((first, row), (end, row), STREAMING, thickness)
    panel.note("waiting for token 1", WAITING)
    panel.note("streaming", STREAMING)
    if summary.errors:
        panel.note("failed", FAILED)
    return panel


def _curve(values: Distribution, scale: float) -> list[Point]:
    """The share of values at or below each; the tail in full, the rest thinned out."""
    ordered, n = values.ordered, values.n
    tail = range(max(n - MAX_POINTS, 0), n)
    body = range(0, tail.start, tail.start // MAX_POINTS + 1)
    return [(ordered[at] * scale, (at + 1) / n) for at in (*body, *tail)]


def _draw_limit(panel: Panel, limit_ms: float | None, of: str) -> None:
    if limit_ms is not None:
        line = [(limit_ms, 0.0), (limit_ms, 1.0)]
        panel.line(line, LIMIT, f"limit{of}: {limit_ms:g} ms", dashed=True)


def _log_axis(label: str, distributions: Sequence[Distribution], limit_ms: float | None) -> Axis:
    """Holds the limit too, if there is one."""
    values = [v * 1e3 for one in distributions for v in (one.at(0.5), one.maximum) if v]
    values += [limit_ms] if limit_ms else []
    low, high = min(values, default=1.0), max(values, default=10.0)
    return Axis(label, low / 4, high * 1.1, log=True)


def _shares() -> Axis:
    return Axis("share", 0.0, 1.0)


def _colours(summaries: Sequence[RunSummary]) -> list[str]:
    return [COLOURS[at % len(COLOURS)] for at in range(len(summaries))]
