"""The report: a table of all policies, and for each which request had which place when."""

from collections.abc import Sequence

from services.simulator.batching.outcome import Outcome
from services.simulator.batching.slots import Stay
from shared.plot.axis import Axis
from shared.plot.chart import NUM_COLOURS, Chart
from shared.plot.page import figure, page, table

COLUMNS = (
    *("policy", "requests/s", "tokens/s"),
    *("latency P50 s", "P95", "P99", "TTFT P50 s", "P95", "P99", "padding"),
)


def cells(outcome: Outcome) -> tuple[str, ...]:
    """A row under COLUMNS."""
    return (
        outcome.policy,
        f"{outcome.requests_a_second:.2f}",
        f"{outcome.tokens_a_second:,.0f}",
        *(f"{value:.3f}" for value in (*outcome.latency_s, *outcome.wait_s)),
        f"{100 * outcome.padding_ratio:.1f} %",
    )


def rendered(
    outcomes: Sequence[Outcome], facts: Sequence[tuple[str, str]], num_slots: int, num_shown: int
) -> str:
    """The whole file, with the places of the `num_shown` requests that arrived first."""
    shown = {one.policy: _first(one, num_shown) for one in outcomes}
    end_s = max(stay.end_s for stays in shown.values() for stay in stays)
    parts = [table(COLUMNS, map(cells, outcomes))]
    parts += [
        figure(
            f"{policy}: the first {num_shown} requests; pale is a place that is kept but not used",
            slots_chart(stays, num_slots, end_s),
        )
        for policy, stays in shown.items()
    ]
    return page("Batching policies", facts, parts)


def slots_chart(stays: Sequence[Stay], num_slots: int, end_s: float) -> Chart:
    """A row for each place, a bar for each request in it, until `end_s`."""
    x = Axis("seconds since the first could arrive", 0.0, end_s)
    chart = Chart(x, Axis("place", 0.0, float(num_slots)), max(120.0, 8.0 * num_slots))
    for stay in stays:
        request, row = stay.request, stay.slot + 0.5
        colour = request.number % NUM_COLOURS
        used_s = min(stay.end_s, request.tokens_s[-1])
        text = (
            f"request {request.number}: arrived at {request.at_s:.3f} s, first token after "
            f"{request.wait_s:.3f} s, last after {request.latency_s:.3f} s; "
            f"{request.num_prompt} tokens in, {request.num_output} out"
        )
        chart.span((stay.begin_s, row), used_s, colour, text)
        if stay.end_s > used_s:
            chart.span((used_s, row), stay.end_s, colour, text, faint=True)
    return chart


def _first(outcome: Outcome, num_shown: int) -> list[Stay]:
    return [stay for stay in outcome.stays if stay.request.number < num_shown]
