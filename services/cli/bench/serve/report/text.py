"""A summary as a person reads it: a block per load point, a table for a sweep."""

from collections.abc import Sequence

from services.cli.bench.measure.quantiles import QUANTILES, Distribution, quantile_name
from services.cli.bench.serve.report.comparison import ComparedFigure, Comparison
from services.cli.bench.serve.report.summary import RunSummary
from services.cli.bench.serve.sample import REFUSED

NOTHING = "-"
_LABEL_WIDTH = 26


def render_run(summary: RunSummary) -> str:
    """All figures of one load point."""
    lines = [_headline(summary), _quantile_header()]
    lines.append(_row("TTFT, ms", summary.ttft))
    if summary.ideal_ttft is not None:
        lines.append(_row("  ideal first-come", summary.ideal_ttft))
        lines += [] if summary.ideal is None or summary.ideal.fault else [_ratio_row(summary)]
    lines.append(_row("  from real send", summary.ttft_sent))
    lines.append(_row(_gap_name(summary), summary.gap))
    if summary.several_per_chunk and summary.chunk_tokens_known:
        lines.append(_row("  spread over tokens", summary.spread_gap))
    lines += [_row("TPOT, ms", summary.tpot), _row("end to end, ms", summary.e2e)]
    lines += [*_throughput(summary), *_notes(summary)]
    return "\n".join(lines) + "\n"


def render_comparison(comparison: Comparison) -> str:
    """Both endpoints' figures of one load point, side by side."""
    header = ("", "ours", "theirs", "ours / theirs", "better")
    rows = [header, *(_comparison_row(figure) for figure in comparison.figures)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.rjust(width) if 0 < at < 4 else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    notes = [f"note: {note}" for note in comparison.notes]
    return "\n".join([f"ours against theirs, {comparison.label}", *lines, *notes]) + "\n"


def render_sweep(summaries: Sequence[RunSummary]) -> str:
    """One line per load point."""
    header = (
        "load",
        "ok/sent",
        "429",
        "failed",
        "req/s",
        "out tok/s",
        "TTFT p50",
        "p99",
        "ideal x p50",
        "p99",
        "TPOT p50",
        "p99",
        "gap p50",
        "p99",
        "p99.9",
        "goodput",
        "",
    )
    rows = [header, *(_sweep_row(summary) for summary in summaries)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join(lines) + "\n"


def _headline(summary: RunSummary) -> str:
    run = summary.run
    kind = "CLOSED loop" if summary.closed else "open loop"
    rate = summary.offered_per_s
    offered = "" if rate is None else f", {rate:.3g}/s offered"
    refused = f", {summary.num_refused} refused ({REFUSED})" if summary.num_refused else ""
    kinds = ", ".join(f"{kind} {num}" for kind, num in summary.failures.most_common())
    failed = f", {summary.failures.total()} failed ({kinds})" if kinds else ""
    return (
        f"{kind}, {summary.title}: {run.num_sent} requests in {run.seconds:.1f} s{offered}, "
        f"{len(summary.good)} answered{refused}{failed}"
    )


def _throughput(summary: RunSummary) -> list[str]:
    num_in = sum(sample.input_tokens for sample in summary.good)
    num_out = sum(sample.num_tokens for sample in summary.good)
    lines = [
        f"throughput                {summary.per_second(len(summary.good)):.3g} requests/s, "
        f"{summary.per_second(num_in):.0f} tokens/s in, {summary.per_second(num_out):.0f} out"
    ]
    if summary.limits.stated:
        num = summary.num_good_enough
        lines.append(
            f"goodput                   {summary.per_second(num):.3g} requests/s, "
            f"{num / max(summary.run.num_sent, 1):.1%} of those sent ({summary.limits.text})"
        )
    if summary.cost is not None:
        lines.append(f"cost                      {summary.cost.text}")
    return lines


def _notes(summary: RunSummary) -> list[str]:
    cpu = f"CPU {summary.run.client_cpu_share:.0%} of a core"
    lag, loop = _ms(summary.send_lag.tail), _ms(summary.loop_lag.tail)
    lines = [f"client                    send lag p99 {lag} ms, loop lag p99 {loop} ms, {cpu}"]
    if summary.ideal is not None and summary.ideal_ttft is not None:
        lines.append(
            f"ideal                     {summary.ideal.num_servers} prefill server(s), "
            f"{summary.ideal.prefill.text}"
        )
        if summary.ideal.fault:
            lines.append(f"note: no measured / ideal: {summary.ideal.fault}")
    if summary.closed:
        lines.append("note: a closed loop waits for the server; its latencies hide overload")
    if summary.several_per_chunk:
        known = "" if summary.chunk_tokens_known else "; --continuous-usage tells which"
        lines.append(
            f"note: a chunk carries {summary.tokens_per_chunk:.2f} tokens on average, so gaps are "
            f"those of chunks{known}"
        )
    if summary.num_without_text:
        lines.append(
            f"note: {summary.num_without_text} answers are tokens without text; only their "
            "end was seen, which counts as their first chunk"
        )
    if summary.client_fault:
        lines.append(f"INVALID: the client was the bottleneck ({summary.client_fault})")
    return lines


def _gap_name(summary: RunSummary) -> str:
    return "chunk gap, ms" if summary.several_per_chunk else "token gap, ms"


def _quantile_header() -> str:
    names = ["n", *(quantile_name(q) for q in QUANTILES), "max"]
    return " " * _LABEL_WIDTH + "".join(name.rjust(10) for name in names)


def _row(label: str, values: Distribution) -> str:
    cells = [str(values.n), *(_ms(values.at(q)) for q in QUANTILES), _ms(values.maximum)]
    return label.ljust(_LABEL_WIDTH) + "".join(cell.rjust(10) for cell in cells)


def _ratio_row(summary: RunSummary) -> str:
    cells = ["", *(_ratio(summary.ideal_ratio(q)) for q in QUANTILES)]
    return "  measured / ideal".ljust(_LABEL_WIDTH) + "".join(cell.rjust(10) for cell in cells)


def _sweep_row(summary: RunSummary) -> tuple[str, ...]:
    good = f"{summary.num_good_enough / max(summary.run.num_sent, 1):.1%}"
    num_out = sum(sample.num_tokens for sample in summary.good)
    return (
        summary.title,
        f"{len(summary.good)}/{summary.run.num_sent}",
        str(summary.num_refused),
        str(summary.failures.total()),
        f"{summary.per_second(len(summary.good)):.3g}",
        f"{summary.per_second(num_out):.0f}",
        _ms(summary.ttft.at(0.5)),
        _ms(summary.ttft.at(0.99)),
        _ratio(summary.ideal_ratio(0.5)),
        _ratio(summary.ideal_ratio(0.99)),
        _ms(summary.tpot.at(0.5)),
        _ms(summary.tpot.at(0.99)),
        _ms(summary.gap.at(0.5)),
        _ms(summary.gap.at(0.99)),
        _ms(summary.gap.at(0.999)),
        good if summary.limits.stated else NOTHING,
        "INVALID" if summary.client_fault else "",
    )


def _comparison_row(figure: ComparedFigure) -> tuple[str, ...]:
    values = (_figure(figure.ours), _figure(figure.theirs))
    return (figure.name, *values, _ratio(figure.ratio), figure.better or "")


def _figure(value: float | None) -> str:
    if value is None:
        return NOTHING
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def _ms(seconds_s: float | None) -> str:
    return _figure(None if seconds_s is None else seconds_s * 1e3)


def _ratio(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.2f}x"
