"""The policy in a simulated cell, for an hour and more.

Guarded against: workers that go and come back at a constant load, and a promise that is kept only
on paper. Each run has its own random load, the same in every run of the tests.
"""

import math
import random
from itertools import pairwise

import pytest

from services.autoscaler.planning.pool import NO_PLACE_S
from services.autoscaler.planning.prefill_replay import computing_s
from services.autoscaler.view import Arrival
from tests.support.cell_views import poisson
from tests.support.simulated_cell import TYPICAL, SimulatedCell, quick_reversals

PROMPT_S = computing_s([Arrival(0.0, 2000)], TYPICAL)[0]
LENGTH_S = 4500.0
"""a quarter of an hour until the window is full, and an hour"""


def _reversals(orders: list[tuple[float, int]], first: int) -> int:
    return quick_reversals(orders, first, within_s=LENGTH_S)


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize("load", [0.4, 0.55, 0.7])
def test_no_worker_goes_and_comes_back_at_a_constant_load(load: float, num_workers: int) -> None:
    arrivals = poisson(load / PROMPT_S, LENGTH_S, until_s=LENGTH_S, swing=0.1)
    cell = SimulatedCell(arrivals, num_workers)
    cell.run(LENGTH_S)
    assert _reversals(cell.orders, num_workers) == 0, cell.orders
    assert cell.late_share(900.0) <= 0.01


def test_a_load_that_swings_reverses_at_most_twice_an_hour_and_is_served() -> None:
    """Between one worker's load and four's, three times an hour."""
    dice, at_s, arrivals = random.Random(3), 0.0, []  # noqa: S311
    while at_s < LENGTH_S:
        load = 2.5 + 1.5 * math.sin(2 * math.pi * at_s / 1200)
        at_s += dice.expovariate(load / PROMPT_S)
        arrivals.append(Arrival(at_s, dice.randrange(1000, 3000)))
    cell = SimulatedCell(arrivals, 3)
    cell.run(LENGTH_S)
    assert quick_reversals(cell.orders, 3) <= 2, cell.orders
    assert cell.late_share(900.0) <= 0.02


def test_load_that_ends_gives_the_workers_back_one_by_one() -> None:
    arrivals = poisson(2.5 / PROMPT_S, 1200.0, until_s=1200.0)
    arrivals += poisson(0.2 / PROMPT_S, LENGTH_S - 1200, until_s=LENGTH_S, seed=2)
    cell = SimulatedCell(arrivals, 4)
    cell.run(LENGTH_S)
    assert [replicas for _, replicas in cell.orders][-3:] == [3, 2, 1]
    assert cell.late_share(0.0) <= 0.01


def test_a_cluster_without_a_place_is_asked_again_only_after_a_while() -> None:
    arrivals = poisson(3.0 / PROMPT_S, 1800.0, until_s=1800.0)
    cell = SimulatedCell(arrivals, 2, most_placed=2)
    cell.run(1800.0)
    numbers = [2, *(replicas for _, replicas in cell.orders)]
    begun = [
        at_s
        for (at_s, _), (before, after) in zip(cell.orders, pairwise(numbers), strict=True)
        if before == 2 < after
    ]
    assert 2 <= len(begun) <= 3, cell.orders
    assert min(after - before for before, after in pairwise(begun)) >= NO_PLACE_S
