"""The report of simulated policies."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from services.autoscaler.view import Arrival
from services.simulator.outcome import Outcome
from services.simulator.report import figures
from shared.plot.page import figure, page, table

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
        figure("What arrives", figures.arrivals_chart(report.arrivals, length_s)),
        figure("Pods by policy", figures.pods_chart(shown, colours, length_s)),
        figure(
            "How long the unluckiest hundredth of each minute's prompts waited",
            figures.waits_chart(shown, colours, length_s, report.limit_s),
        ),
        figure(
            "What is kept of the promise, and what it costs: up and to the left is better",
            figures.frontier_chart(report.outcomes, colours),
        ),
        figure(
            "Orders that were taken back within ten minutes",
            figures.reversals_chart(shown, colours),
        ),
    ]
    for condition, found in report.sensitivity.items():
        chart = figures.sensitivity_chart(condition, found, colours)
        parts.append(figure(f"If it were another: {condition}", chart))
    if any(len(number) > 1 for one in shown for _, number in one.path):
        chart = figures.path_chart(shown, colours, report.budget, length_s)
        parts.append(figure("Prefill and decode pods over time", chart))
    return page(report.title, report.facts, parts)


def _is_sweep(outcome: Outcome, outcomes: Sequence[Outcome]) -> bool:
    """Whether it is there for the frontier alone: the family's first stands for it elsewhere."""
    name = figures.family(outcome.policy)
    first = next(one for one in outcomes if figures.family(one.policy) == name)
    return name in figures.FAMILIES and first is not outcome


def _table(outcomes: Sequence[Outcome]) -> str:
    rows = [
        (
            one.policy,
            f"{100 * one.attainment:.2f} %",
            f"{one.pod_hours:.1f}",
            f"{one.pods:.2f}",
            f"{one.reversals_an_hour:.1f}",
        )
        for one in outcomes
    ]
    return table(COLUMNS, rows)
