"""The policy in a simulated cell, for an hour and more.

Guarded against: workers that go and come back at a constant load, and a promise that is kept only
on paper. Each run has its own random load, the same in every run of the tests.
"""

import math
import random
from collections.abc import Sequence
from itertools import pairwise

import pytest

from services.autoscaler.planning.pool import NO_PLACE_S
from services.autoscaler.view import Arrival
from services.simulator.cell import KINDS, Setup, SimulatedCell
from services.simulator.outcome import outcome_of
from services.simulator.policies.replay import ReplayPolicy
from services.simulator.tally import quick_reversals
from services.simulator.worker_kind import WorkerKind
from tests.support.cell_views import COSTS, poisson

KIND = WorkerKind(COSTS, num_blocks=4000)
PROMPT_S = KIND.alone_s(Arrival(0.0, 2000))
LENGTH_S = 4500.0
"""a quarter of an hour until the window is full, and an hour"""


def run(
    arrivals: Sequence[Arrival],
    num_workers: int,
    length_s: float = LENGTH_S,
    *,
    num_gpus: int | None = None,
    warm_s: float = 900.0,
) -> tuple[list[tuple[float, int]], float]:
    """The orders after the first, and the share of prompts that were late."""
    setup = Setup(
        {"prefill": num_workers},
        kinds={**KINDS, "prefill": KIND},
        most=16,
        num_gpus=num_gpus,
        warm_s=warm_s,
    )
    cell = SimulatedCell(setup, arrivals, ReplayPolicy())
    cell.run(length_s, 60.0)
    orders = [order for order in cell.tally.orders["prefill"] if 0 < order[0] <= length_s]
    return orders, 1 - outcome_of(cell, "replay", "some").attainment


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize("load", [0.4, 0.55, 0.7])
def test_no_worker_goes_and_comes_back_at_a_constant_load(load: float, num_workers: int) -> None:
    arrivals = poisson(load / PROMPT_S, LENGTH_S, until_s=LENGTH_S, swing=0.1)
    orders, late = run(arrivals, num_workers)
    assert quick_reversals(orders, num_workers, within_s=LENGTH_S) == 0, orders
    assert late <= 0.01


def test_a_load_that_swings_reverses_at_most_twice_an_hour_and_is_served() -> None:
    """Between one worker's load and four's, three times an hour."""
    dice, at_s, arrivals = random.Random(3), 0.0, []  # noqa: S311
    while at_s < LENGTH_S:
        load = 2.5 + 1.5 * math.sin(2 * math.pi * at_s / 1200)
        at_s += dice.expovariate(load / PROMPT_S)
        arrivals.append(Arrival(at_s, dice.randrange(1000, 3000)))
    orders, late = run(arrivals, 3)
    assert quick_reversals(orders, 3) <= 2, orders
    assert late <= 0.02


def test_load_that_ends_gives_the_workers_back_one_by_one() -> None:
    arrivals = poisson(2.5 / PROMPT_S, 1200.0, until_s=1200.0)
    arrivals += poisson(0.2 / PROMPT_S, LENGTH_S - 1200, until_s=LENGTH_S, seed=2)
    orders, late = run(arrivals, 4, warm_s=0.0)
    assert [replicas for _, replicas in orders][-3:] == [3, 2, 1]
    assert late <= 0.01


def test_a_cluster_without_a_place_is_asked_again_only_after_a_while() -> None:
    arrivals = poisson(3.0 / PROMPT_S, 1800.0, until_s=1800.0)
    orders, _ = run(arrivals, 2, 1800.0, num_gpus=2)
    numbers = [2, *(replicas for _, replicas in orders)]
    begun = [
        at_s
        for (at_s, _), (before, after) in zip(orders, pairwise(numbers), strict=True)
        if before == 2 < after
    ]
    assert 2 <= len(begun) <= 3, orders
    assert min(after - before for before, after in pairwise(begun)) >= NO_PLACE_S
