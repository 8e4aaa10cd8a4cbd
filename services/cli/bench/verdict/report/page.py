"""The report of a verdict: one HTML file, made from what the JSON holds."""

import time
from collections.abc import Iterator

from services.cli.bench.verdict.report import figures
from services.cli.bench.verdict.report.point import Point
from services.cli.bench.verdict.topology_run import TopologyRun, gap_of, ttft_of
from services.cli.bench.verdict.verdict import Verdict
from shared.plot.page import figure, page, table

COLUMNS = (
    *("turn", "topology", "rate/s", "seed", "sent", "answered", "in limits"),
    *("TTFT p50, ms", "TTFT p99, ms", "gap p50, ms", "gap p99, ms", "INVALID because"),
)
GOODPUT_COLUMNS = ("topology", "goodput, requests/s", "from", "to")


def rendered(verdict: Verdict) -> str:
    """The whole file."""
    limits, wanted = verdict.limits, verdict.contest.rules.wanted
    title = verdict.sentence
    parts = [
        table(GOODPUT_COLUMNS, _goodputs(verdict)),
        figure(
            f"Highest rate at which {wanted:.0%} of the requests are within the limits, with 95 %",
            figures.goodput_chart(verdict),
        ),
        figure("Requests within the limits", figures.attainment_chart(verdict)),
        figure(
            "Time to first token",
            figures.time_chart(verdict, "TTFT", Point.ttft_ms, limits.ttft_ms),
        ),
        figure(
            "Longest gaps: of each answer the p99 of its own",
            figures.time_chart(verdict, "gap", Point.gap_ms, limits.gap_ms),
        ),
        table(COLUMNS, map(_row, verdict.contest.runs)),
    ]
    return page(title, _facts(verdict), parts)


def _facts(verdict: Verdict) -> Iterator[tuple[str, str]]:
    environment, rules = verdict.environment, verdict.contest.rules
    yield "load", verdict.load
    yield "limits", f"{verdict.limits.text}, kept by {rules.wanted:.1%} of the requests"
    yield "seeds", ", ".join(map(str, rules.seeds))
    for topology, cell in environment["cells"].items():
        what = cell["plan"] or cell["url"]
        yield topology, f"{what}; model {cell['model']}, version {cell['version']}"
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(environment["unix_time_s"]))
    yield "measured", when
    yield "by", f"Baton {environment['baton']}, Python {environment['python']}"
    yield "machine of the client", f"{environment['platform']}, {environment['num_cpus']} cores"
    yield "command", environment["command"]
    for note in verdict.notes:
        yield "note", note


def _goodputs(verdict: Verdict) -> Iterator[tuple[str, ...]]:
    bounds = verdict.judgement.goodput_bounds
    for topology, (value, low, high) in verdict.judgement.goodputs.items():
        bound = f"{bounds[topology]} " if topology in bounds else ""
        yield topology, f"{bound}{value:.3f}", f"{low:.3f}", f"{high:.3f}"
    if (ratio := verdict.judgement.ratio) is not None:
        names = f"{verdict.judgement.pd} over {verdict.judgement.agg}"
        yield names, f"{ratio.value:.3f}", f"{ratio.low:.3f}", f"{ratio.high:.3f}"


def _row(run: TopologyRun) -> tuple[str, ...]:
    ttft, gap = ttft_of([run]), gap_of([run])
    times = (ttft.at(0.5), ttft.at(0.99), gap.at(0.5), gap.at(0.99))
    return (
        str(run.turn),
        run.topology,
        f"{run.rate:g}",
        str(run.seed),
        str(run.num_sent),
        str(run.num_answered),
        f"{run.num_good / run.num_sent:.2%}",
        *("-" if ms is None else f"{ms:.1f}" for ms in times),
        run.invalid,
    )
