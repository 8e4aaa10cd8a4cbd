"""A load that rises from one request a second to twenty-four, of 8,000 tokens each, in a quarter of
an hour: a planner that measures what is served, and not what waits, is late by minutes.

Guarded against: a policy of ours that does the same, and a simulator in which it would not show.
"""

import math
import random

import pytest

from services.autoscaler.view import Arrival
from services.simulator.cell import Setup, SimulatedCell
from services.simulator.outcome import outcome_of
from services.simulator.policies.catalogue import candidate

LENGTH_S = 1200.0


def _arrivals() -> list[Arrival]:
    dice, at_s, found = random.Random(5), 0.0, []  # noqa: S311
    while at_s < LENGTH_S:
        at_s += dice.expovariate(12.5 - 11.5 * math.cos(2 * math.pi * at_s / 1800))
        found.append(Arrival(at_s, 8000, 0, 1))
    return found


@pytest.mark.parametrize(
    ("policy", "at_least_s", "at_most_s"),
    [("planner-throughput", 120.0, 600.0), ("planner", 120.0, 600.0), ("replay", 1.0, 30.0)],
)
def test_whoever_ignores_the_line_lets_users_wait_for_minutes(
    policy: str, at_least_s: float, at_most_s: float
) -> None:
    arrivals = _arrivals()
    chosen = candidate(policy, Setup({"prefill": 2}, warm_s=0.0), arrivals)
    cell = SimulatedCell(chosen.setup, arrivals, chosen.make())
    cell.run(LENGTH_S, 600.0)
    waits_s = [wait_s for _, wait_s in outcome_of(cell, policy, "rise").waits_p99_s]
    assert at_least_s <= max(waits_s) <= at_most_s
    if policy == "replay":
        assert max(waits_s[-5:]) <= 1.0, "the line is gone and stays gone"
