"""`baton bench serve`: load on any OpenAI-compatible endpoint, and what its clients feel.

    look the endpoint up -> plan every request -> warm up -> measure idle prefill times
    -> load point after load point -> tables, JSON lines, a plot

With `--against` there are two endpoints; each step is done for both before the next one.

Needs nothing but the standard library; uvloop is used where it is installed.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from services.cli.bench.measure.environment import allow_many_sockets, machine_record
from services.cli.bench.measure.result_files import check_files
from services.cli.bench.serve import flags as load_flags
from services.cli.bench.serve.endpoint import look_up
from services.cli.bench.serve.load_points import check_load
from services.cli.bench.serve.loaded_endpoint import LoadedEndpoint
from services.cli.bench.serve.report.comparison import Comparison
from services.cli.bench.serve.report.plot import render_plot
from services.cli.bench.serve.report.summary import RunSummary
from services.cli.bench.serve.report.text import render_comparison, render_run, render_sweep
from services.cli.bench.serve.sample import REFUSED
from services.cli.bench.serve.session import LoadSession
from shared.errors import BatonError
from shared.event_loop import run_main

EXIT_CODES = (
    "exit code: 0 every request was answered; 1 one was refused or failed, or a load point is "
    "INVALID (everything is shown and written all the same); 2 a flag is wrong; 4 nothing answers"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    load_flags.add_arguments(parser)
    parser.epilog = EXIT_CODES


def run(arguments: argparse.Namespace) -> int:
    check_load(arguments)
    check_files(arguments.json, arguments.plot)
    allow_many_sockets()
    endpoints = _look_up(arguments)
    session = LoadSession(arguments, endpoints)
    for note in session.trace.notes if session.trace is not None else ():
        _say(arguments, f"note: {note}\n")
    summaries: list[RunSummary] = []
    comparisons: list[Comparison] = []

    def report(of_point: Sequence[RunSummary]) -> None:
        summaries.extend(of_point)
        for summary in of_point:
            _say(arguments, "\n" + render_run(summary))
        if len(of_point) > 1:
            comparisons.append(Comparison(*of_point))
            _say(arguments, "\n" + render_comparison(comparisons[-1]))

    async def main() -> int:
        await session.run(report)
        return 0

    run_main(main())
    if len(summaries) > len(endpoints):
        _say(arguments, "\n" + render_sweep(summaries))
    environment = _environment(arguments.command_line, endpoints)
    _write_json(arguments.json, environment, summaries, comparisons)
    if arguments.plot is not None:
        title = " against ".join(one.facts.model for one in endpoints)
        arguments.plot.write_text(render_plot(title, summaries), encoding="utf-8")
    _judge(summaries)
    return 0


def _look_up(arguments: argparse.Namespace) -> list[LoadedEndpoint]:
    """The endpoints, which all answer."""
    named = load_flags.read_endpoints(arguments)
    endpoints = [LoadedEndpoint(arguments, one, look_up(one)) for one in named]
    for one in endpoints:
        name = f"{one.endpoint.name}: " if one.endpoint.name else ""
        where = f"{one.endpoint.url}{one.endpoint.path}"
        _say(arguments, f"{name}{one.facts.model} at {where}, version {one.facts.version}\n")
    if len({(one.endpoint.url, one.facts.model) for one in endpoints}) < len(endpoints):
        _say(
            arguments,
            "note: both are the same model at the same URL: its prefix cache knows every prompt "
            "the second time\n",
        )
    return endpoints


def _environment(
    command_line: Sequence[str], endpoints: Sequence[LoadedEndpoint]
) -> dict[str, Any]:
    records = [one.facts.record(one.endpoint) for one in endpoints]
    keys = ("endpoint", "against")
    return machine_record(command_line) | dict(zip(keys, records, strict=False))


def _judge(summaries: list[RunSummary]) -> None:
    """Everything was shown: now whether it may be relied on. BatonError names each point that
    has a refused or failed request, or whose figures are the client's."""
    faults = [fault for summary in summaries for fault in _faults(summary)]
    if faults:
        raise BatonError("; ".join(faults))


def _faults(summary: RunSummary) -> list[str]:
    faults = []
    if summary.num_refused:
        what = f"{summary.num_refused} of {summary.run.num_sent} were refused"
        faults.append(f"{summary.title}: {what} ({REFUSED}: {_text_of(summary, REFUSED)})")
    if summary.failures:
        (kind, num), *_ = summary.failures.most_common(1)
        num_failed = summary.failures.total()
        what = f"{num_failed} of {summary.run.num_sent} failed" if summary.good else "no answer"
        faults.append(f"{summary.title}: {what} ({num} times {kind}: {_text_of(summary, kind)})")
    if summary.client_fault:
        faults.append(
            f"{summary.title}: INVALID, the client was the bottleneck ({summary.client_fault}): "
            "lower --rate, give the client a core of its own, or accept it with a higher "
            "--max-lag-ms"
        )
    return faults


def _text_of(summary: RunSummary, kind: str) -> str:
    """In the endpoint's words."""
    return next(s.error_text for s in summary.run.samples if s.error == kind)


def _write_json(
    path: Path | None,
    environment: dict[str, Any],
    runs: Sequence[RunSummary],
    comparisons: Sequence[Comparison],
) -> None:
    if path is None:
        return
    lines = [environment]
    for summary in runs:
        of_run = {"load": summary.label, "endpoint": summary.endpoint or None}
        lines += [of_run | sample.record(summary.run.start_s) for sample in summary.run.samples]
        lines.append(summary.record())
    lines += [comparison.record() for comparison in comparisons]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    if path == Path("-"):
        sys.stdout.write(text)
    else:
        path.write_text(text, encoding="utf-8")


def _say(arguments: argparse.Namespace, text: str) -> None:
    """Tables go to the output, unless the JSON lines do."""
    stream = sys.stderr if arguments.json == Path("-") else sys.stdout
    stream.write(text)
    stream.flush()
