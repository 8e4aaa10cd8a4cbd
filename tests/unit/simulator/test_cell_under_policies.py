"""A whole simulated cell: nothing is lost, no budget is exceeded, and a line is as theory says.

Guarded against: a request that is neither served nor in line, a pod that is made from nothing, a
run that differs from one with the same seed, and waits that no queue has.
"""

import random
from dataclasses import dataclass
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.autoscaler.view import Arrival, Decision, RoleDecision
from services.simulator.cell import Setup, SimulatedCell, with_budget
from services.simulator.outcome import outcome_of
from services.simulator.policies.policy import Seen
from services.simulator.policies.replay import ReplayPolicy
from services.simulator.policies.static import StaticPolicy
from services.simulator.worker_kind import DECODE, WorkerKind
from shared.message_parts.step_costs import StepCosts
from tests.support.cell_views import poisson

ONE_STEP = WorkerKind(StepCosts(chunk_token_s=1e-3), step_tokens=100)
"""a prompt of 100 tokens fills a step of 0.1 s"""


@dataclass
class DrawnPolicy:
    """Orders and drains whatever was drawn."""

    numbers: list[tuple[int, int, bool]]
    every_s: float = 13.0

    def decide(self, seen: Seen) -> Decision:
        prefill, decode, drains = self.numbers.pop(0) if self.numbers else (1, 1, False)
        workers = seen.view.roles["prefill"].workers
        drain = (workers[0].incarnation,) if drains and workers else ()
        return Decision({"prefill": RoleDecision(prefill, drain), "decode": RoleDecision(decode)})


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4), st.booleans()), max_size=12),
    st.integers(2, 6),
    st.integers(0, 1000),
)
@settings(max_examples=25)
def test_nothing_is_lost_and_no_budget_is_exceeded(
    numbers: list[tuple[int, int, bool]], budget: int, seed: int
) -> None:
    """Whatever is ordered. When all is over every request has ended."""
    dice = random.Random(seed)  # noqa: S311
    arrivals = [
        Arrival(at_s, dice.randrange(1, 9000), 0, dice.randrange(0, 300))
        for at_s in sorted(dice.uniform(0, 200) for _ in range(60))
    ]
    setup = with_budget(Setup({"prefill": 1, "decode": 1}, start_s=11.0), budget)
    cell = SimulatedCell(setup, arrivals, DrawnPolicy(numbers))
    for now_s in range(10, 700, 10):
        if now_s == 10:
            cell.run(now_s)
        cell.timeline.run(now_s)
        assert 0 <= sum(pods.num_placed for pods in cell.pods.values()) <= budget
        assert cell.num_in_cell >= 0
        assert len(cell.requests) == sum(at.at_s <= now_s for at in arrivals)
    assert cell.num_in_cell == 0
    assert all(item.ended_s or "decode" in cell.pods for item in cell.requests)
    assert all(number >= 0 for _, path in cell.tally.path for number in path.values())


def test_a_cell_that_loses_a_request_is_seen() -> None:
    """The detector of the test above."""
    cell = SimulatedCell(
        Setup({"prefill": 1}), poisson(1.0, 60, until_s=60), StaticPolicy({"prefill": 1})
    )
    cell._gateway.arrive = lambda request: None  # type: ignore[method-assign]
    cell.run(60, 60)
    assert cell.num_in_cell == len(cell.requests) > 0


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_one_worker_waits_as_long_as_a_line_with_fixed_service_does(load: float) -> None:
    """M/D/1: the mean wait is load / (2 x (1 - load)) services, of 0.1 s each."""
    dice, at_s = random.Random(4), 0.0  # noqa: S311
    arrivals: list[Arrival] = []
    while len(arrivals) < 25_000:
        at_s += dice.expovariate(load / 0.1)
        arrivals.append(Arrival(at_s, 100))
    setup = Setup({"prefill": 1}, kinds={"prefill": ONE_STEP, "decode": DECODE}, warm_s=0)
    cell = SimulatedCell(setup, arrivals, StaticPolicy({"prefill": 1}))
    cell.run(at_s, 300)
    waits_s = [item.wait_s for item in cell.requests if item.wait_s is not None]
    assert len(waits_s) == len(arrivals)
    assert fmean(waits_s) == pytest.approx(0.1 * load / (2 * (1 - load)), rel=0.1)


def test_the_same_seed_is_the_same_run() -> None:
    def outcome(seed: int) -> object:
        arrivals = poisson(8.0, 300, until_s=300, seed=seed)
        cell = SimulatedCell(
            Setup({"prefill": 1, "decode": 1}, warm_s=60), arrivals, ReplayPolicy()
        )
        cell.run(300, 60)
        return outcome_of(cell, "replay", "some")

    assert outcome(1) == outcome(1)
    assert outcome(1) != outcome(2)


def test_a_prompt_that_was_not_computed_by_the_end_was_not_in_time() -> None:
    cell = SimulatedCell(
        Setup({"prefill": 1}, warm_s=0), [Arrival(1.0, 10**9)], StaticPolicy({"prefill": 1})
    )
    cell.run(60, 60)
    assert outcome_of(cell, "static", "one").attainment == 0


def test_pods_cost_from_their_placement_to_their_end() -> None:
    """2 pods for 100 s, 3 for 100 s, and then 1, judged from second 50 to 300."""
    numbers = iter([3, 1, 1])

    class Planned:
        every_s = 100.0

        def decide(self, seen: Seen) -> Decision:
            return Decision({"prefill": RoleDecision(next(numbers))})

    cell = SimulatedCell(Setup({"prefill": 2}, warm_s=50), [], Planned())
    cell.run(300)
    assert cell.tally.pod_hours() == pytest.approx((50 * 2 + 100 * 3 + 100 * 1) / 3600)


def test_an_autoscaler_that_sees_nothing_changes_nothing() -> None:
    arrivals = poisson(10.0, 600, until_s=600)
    blind = Setup({"prefill": 2}, warm_s=0, blind_s=(0.0, 601.0))
    cell = SimulatedCell(blind, arrivals, ReplayPolicy())
    cell.run(600)
    assert cell.tally.orders == {"prefill": [(0.0, 2)]}
