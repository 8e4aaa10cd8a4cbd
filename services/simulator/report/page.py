"""The report: one HTML file that needs nothing else, light or dark as its reader's system is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from services.autoscaler.view import Arrival
from services.simulator.outcome import Outcome
from services.simulator.report import figures
from services.simulator.report.chart import Chart
from services.simulator.report.style import STYLE

COLUMNS = ("policy", "in time", "GPU-hours", "pods on average", "quick reversals an hour")


@dataclass(frozen=True)
class Report:
    """What is shown."""

    title: str
    facts: Sequence[tuple[str, str]]
    """how it was simulated: (what, value)"""
    arrivals: Sequence[Arrival]
    length_s: float
    limit_s: float
    """wait that is promised"""
    outcomes: Sequence[Outcome]
    budget: int = 0
    sensitivity: Mapping[str, Mapping[str, Sequence[tuple[float, Outcome]]]] = field(
        default_factory=dict
    )
    """condition -> policy -> (value, outcome)"""


def rendered(report: Report) -> str:
    """The whole file."""
    colours = figures.Colours([one.policy for one in report.outcomes])
    shown = [one for one in report.outcomes if not _is_sweep(one, report.outcomes)]
    length_s, parts = report.length_s, [_table(report.outcomes)]
    parts += [
        _figure("What arrives", figures.arrivals_chart(report.arrivals, length_s)),
        _figure("Pods by policy", figures.pods_chart(shown, colours, length_s)),
        _figure(
            "How long the unluckiest hundredth of each minute's prompts waited",
            figures.waits_chart(shown, colours, length_s, report.limit_s),
        ),
        _figure(
            "What is kept of the promise, and what it costs: up and to the left is better",
            figures.frontier_chart(report.outcomes, colours),
        ),
        _figure(
            "Orders that were taken back within ten minutes",
            figures.reversals_chart(shown, colours),
        ),
    ]
    for condition, found in report.sensitivity.items():
        chart = figures.sensitivity_chart(condition, found, colours)
        parts.append(_figure(f"If it were another: {condition}", chart))
    if any("decode" in number for one in shown for _, number in one.path):
        chart = figures.path_chart(shown, colours, report.budget, length_s)
        parts.append(_figure("Prefill and decode pods over time", chart))
    facts = "".join(
        f"<dt>{escape(what)}</dt><dd>{escape(value)}</dd>" for what, value in report.facts
    )
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<title>{escape(report.title)}</title>\n<link rel="icon" href="data:,">\n'
        f"<style>{STYLE}</style>\n</head>\n<body>\n<h1>{escape(report.title)}</h1>\n"
        f"<dl>{facts}</dl>\n{''.join(parts)}\n</body>\n</html>\n"
    )


def _is_sweep(outcome: Outcome, outcomes: Sequence[Outcome]) -> bool:
    """Whether it is there for the frontier alone: the family's first stands for it elsewhere."""
    name = figures.family(outcome.policy)
    first = next(one for one in outcomes if figures.family(one.policy) == name)
    return name in figures.FAMILIES and first is not outcome


def _table(outcomes: Sequence[Outcome]) -> str:
    head = "".join(f'<th scope="col">{name}</th>' for name in COLUMNS)
    rows = "".join(
        f'<tr><th scope="row">{escape(one.policy)}</th><td>{100 * one.attainment:.2f} %</td>'
        f"<td>{one.pod_hours:.1f}</td><td>{one.pods:.2f}</td>"
        f"<td>{one.reversals_an_hour:.1f}</td></tr>"
        for one in outcomes
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>\n"


def _figure(caption: str, chart: Chart) -> str:
    return f"<figure><figcaption>{escape(caption)}</figcaption>{chart.render()}</figure>\n"
