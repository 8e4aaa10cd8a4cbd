"""The figures of a report: each a chart with a sentence that says how to read it."""

from collections.abc import Mapping, Sequence

from services.autoscaler.view import Arrival
from services.simulator.outcome import NEVER_S, Outcome
from shared.plot.axis import Axis, Point
from shared.plot.chart import NUM_COLOURS, Chart

HOUR_S = 3600.0
BIN_S = 60.0
FAMILIES = ("replay", "foresight")
"""whose points with several targets are joined to a line"""


class Colours:
    """One for each family of policies, the same in all figures."""

    def __init__(self, names: Sequence[str]) -> None:
        families = list(dict.fromkeys(map(family, names)))
        self._by_family = {name: at % NUM_COLOURS for at, name in enumerate(families)}

    def of(self, policy: str) -> int:
        return self._by_family[family(policy)]


def family(policy: str) -> str:
    """`replay-0.9` and `replay` are the same policy with two targets."""
    kind = policy.partition("-")[0]
    return kind if kind in (*FAMILIES, "static") else policy


def arrivals_chart(arrivals: Sequence[Arrival], length_s: float) -> Chart:
    """Prompt tokens a second, by minute."""
    tokens = [0.0] * max(1, int(length_s // BIN_S))
    for arrival in arrivals:
        if arrival.at_s < len(tokens) * BIN_S:
            tokens[int(arrival.at_s // BIN_S)] += arrival.num_prompt_tokens / BIN_S / 1000
    chart = Chart(_hours(length_s), Axis("1,000 tokens/s", 0.0, _above(tokens)), 130)
    chart.steps([(at * BIN_S / HOUR_S, value) for at, value in enumerate(tokens)], 9)
    return chart


def pods_chart(outcomes: Sequence[Outcome], colours: Colours, length_s: float) -> Chart:
    """Pods with GPUs, of all roles."""
    paths = {
        one.policy: [(at_s, float(sum(number.values()))) for at_s, number in one.path]
        for one in outcomes
    }
    most = _above([value for path in paths.values() for _, value in path])
    chart = Chart(_hours(length_s), Axis("pods with GPUs", 0.0, most))
    for policy, path in paths.items():
        points = [(min(at_s, length_s) / HOUR_S, value) for at_s, value in path if at_s <= length_s]
        points.append((length_s / HOUR_S, points[-1][1]))
        chart.steps(points, colours.of(policy), policy)
    return chart


def waits_chart(
    outcomes: Sequence[Outcome], colours: Colours, length_s: float, limit_s: float
) -> Chart:
    """p99 of the waits of each minute's arrivals, on a logarithmic axis."""
    chart = Chart(_hours(length_s), Axis("p99 wait, s", 0.01, 1000.0, log=True))
    for one in outcomes:
        points = [(at_s / HOUR_S, min(wait_s, NEVER_S)) for at_s, wait_s in one.waits_p99_s]
        chart.line(points, colours.of(one.policy), one.policy)
    chart.line([(0, limit_s), (length_s / HOUR_S, limit_s)], 8, "promised", dash="6 4")
    return chart


def frontier_chart(outcomes: Sequence[Outcome], colours: Colours) -> Chart:
    """Attainment against cost; up and to the left is better."""
    costs = [one.pod_hours for one in outcomes]
    shares = [100 * one.attainment for one in outcomes]
    shown = sorted(share for share in shares if share >= 50) or shares
    x = Axis("GPU-hours", 0.9 * min(costs), 1.05 * max(costs))
    chart = Chart(x, Axis("requests in time, %", max(0.0, shown[0] - 2), 100.5), 320)
    for name in FAMILIES:
        line = sorted(
            (one.pod_hours, 100 * one.attainment) for one in outcomes if family(one.policy) == name
        )
        if len(line) > 1:
            chart.line(line, colours.of(name), name)
    for one in outcomes:
        share = 100 * one.attainment
        text = f"{one.policy}: {share:.2f} %, {one.pod_hours:.1f} GPU-hours"
        below = f" ({share:.0f} %)" if share < chart.y.low else ""
        chart.dot((one.pod_hours, share), colours.of(one.policy), one.policy + below, text)
    return chart


def reversals_chart(outcomes: Sequence[Outcome], colours: Colours) -> Chart:
    """Orders an hour that go the other way than the one before, within ten minutes of it."""
    rates = [one.reversals_an_hour for one in outcomes]
    chart = Chart(
        Axis("", 0.0, float(len(outcomes)), bare=True),
        Axis("quick reversals an hour", 0.0, _above(rates)),
        180,
    )
    for at, one in enumerate(outcomes):
        point = (at + 0.5, one.reversals_an_hour)
        chart.bar(point, colours.of(one.policy), 0.6)
        chart.write(point, f"{one.policy} {one.reversals_an_hour:.1f}")
    return chart


def path_chart(
    outcomes: Sequence[Outcome], colours: Colours, budget: int, length_s: float
) -> Chart:
    """Prefill and decode pods of each moment, and the line of pairs that use the budget up."""
    pairs = {one.policy: _pairs(one, length_s) for one in outcomes}
    most = max([float(budget), *(max(pair) for path in pairs.values() for pair in path)])
    chart = Chart(Axis("prefill pods", 0.0, most + 1), Axis("decode pods", 0.0, most + 1), 320, 420)
    for at, (policy, path) in enumerate(pairs.items()):
        aside = 0.06 * at  # paths that share pairs stay apart
        chart.line([(x + aside, y + aside) for x, y in path], colours.of(policy), policy)
    if budget:
        chart.line([(0, budget), (budget, 0)], 8, f"{budget} GPUs", dash="6 4")
    return chart


def sensitivity_chart(
    label: str, found: Mapping[str, Sequence[tuple[float, Outcome]]], colours: Colours
) -> Chart:
    """Attainment of policies as one condition changes."""
    values = [value for line in found.values() for value, _ in line]
    shares = [100 * one.attainment for line in found.values() for _, one in line]
    y = Axis("requests in time, %", max(0.0, min(shares) - 1), 100.2)
    chart = Chart(Axis(label, 0.8 * min(values), 1.1 * max(values), log=True), y, 200, 420)
    for policy, line in found.items():
        points = [(value, 100 * one.attainment) for value, one in line]
        chart.line(points, colours.of(policy), policy)
        for point, (value, one) in zip(points, line, strict=True):
            chart.dot(
                point, colours.of(policy), f"{value:g}", f"{policy}: {one.pod_hours:.1f} GPU-hours"
            )
    return chart


def _pairs(outcome: Outcome, length_s: float) -> list[Point]:
    return [
        (float(number.get("prefill", 0)), float(number.get("decode", 0)))
        for at_s, number in outcome.path
        if at_s <= length_s
    ]


def _hours(length_s: float) -> Axis:
    return Axis("hours", 0.0, length_s / HOUR_S)


def _above(values: Sequence[float]) -> float:
    return 1.1 * max([*values, 1e-3])
