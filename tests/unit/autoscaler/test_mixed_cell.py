"""A cell whose workers do both: the replay against it, and the policy in it.

Guarded against: a replay that drifts from what workers and router do, and a promise that is kept
only on paper. Each load is the same in every run of the tests.
"""

import math
import random
from collections.abc import Sequence

import pytest

from services.autoscaler.planning.mixed_replay import MixedReplay
from services.autoscaler.planning.prefill_replay import computing_s
from services.autoscaler.planning.typical_worker import TypicalWorker
from services.autoscaler.view import Arrival, Promise
from services.simulator.cell import Setup, SimulatedCell
from services.simulator.loads import Load, simulate
from services.simulator.outcome import outcome_of
from services.simulator.policies.static import StaticPolicy
from services.simulator.worker_kind import DECODE, WorkerKind
from tests.support.cell_views import COSTS

KIND = WorkerKind(COSTS, num_blocks=4000)
TIGHT = WorkerKind(COSTS, num_blocks=600)
LENGTH_S = 600.0


def arrivals(rate_s: float, prompts: tuple[int, int], num_output: float) -> list[Arrival]:
    dice, at_s, found = random.Random(1), 0.0, list[Arrival]()  # noqa: S311
    while (at_s := at_s + dice.expovariate(rate_s)) < LENGTH_S:
        num_prompt = dice.randrange(*prompts)
        found.append(Arrival(at_s, num_prompt, 0, 1 + int(dice.expovariate(1 / num_output))))
    return found


def simulated(load: Sequence[Arrival], kind: WorkerKind, promise: Promise, num: int) -> float:
    setup = Setup({"decode": num}, kinds={"decode": kind}, promise=promise, warm_s=0.0)
    cell = SimulatedCell(setup, load, StaticPolicy({"decode": num}))
    cell.run(LENGTH_S, 2000.0)
    assert cell.num_in_cell == 0
    return outcome_of(cell, "static", "some").attainment


@pytest.mark.parametrize(
    ("rate_s", "prompts", "num_output", "kind", "gap_s", "numbers"),
    [
        (8.0, (1000, 3000), 0.01, KIND, 0.05, (3,)),
        (6.0, (1000, 3000), 10.0, KIND, 0.05, (3, 5)),
        (6.0, (1000, 3000), 200.0, KIND, 0.02, (3, 4, 6)),
        (10.0, (50, 200), 300.0, KIND, 0.012, (2,)),
        (3.0, (500, 1000), 400.0, TIGHT, 0.05, (2, 3)),
        (12.0, (500, 4000), 150.0, DECODE, 0.05, (3, 4)),
        (40.0, (50, 300), 50.0, KIND, 0.03, (2,)),
        (1.2, (200, 20_000), 100.0, KIND, 0.05, (5,)),
        (28.0, (1000, 3000), 100.0, KIND, 0.05, (10,)),
    ],
    ids=["prompts", "short", "long", "decode", "kv", "default", "many", "uneven", "crowd"],
)
def test_the_replay_predicts_the_share_within_a_point_and_a_half(
    rate_s: float,
    prompts: tuple[int, int],
    num_output: float,
    kind: WorkerKind,
    gap_s: float,
    numbers: tuple[int, ...],
) -> None:
    load, promise = arrivals(rate_s, prompts, num_output), Promise(gap_s=gap_s)
    worker = TypicalWorker(kind.costs, kind.step_tokens, kind.num_blocks, kind.block_size)
    replay = MixedReplay.of(load, computing_s(load, worker), worker, promise)
    for number in numbers:
        share = simulated(load, kind, promise, number)
        assert replay.share(number) == pytest.approx(share, abs=0.015), number


RUN_S = 4500.0
"""a quarter of an hour until the window is full, and an hour"""


def test_the_policy_keeps_the_promise_at_little_more_than_foresight_costs() -> None:
    """Between two and five requests a second, once in the time. Two workers would be enough for
    the prompts alone."""
    dice, at_s, load = random.Random(1), 0.0, list[Arrival]()  # noqa: S311
    while (
        at_s := at_s + dice.expovariate(3.5 - 1.5 * math.cos(2 * math.pi * at_s / RUN_S))
    ) < RUN_S:
        num_output = 1 + int(dice.expovariate(1 / 100))
        load.append(Arrival(at_s, dice.randrange(1000, 3000), 0, num_output))
    setup = Setup({"decode": 4}, kinds={"prefill": KIND, "decode": KIND})
    found = {
        policy: simulate(policy, setup, Load("day", load, RUN_S))
        for policy in ("replay", "foresight", "static-2")
    }
    assert found["replay"].attainment >= 0.99 > found["static-2"].attainment
    assert found["replay"].pod_hours <= 1.3 * found["foresight"].pod_hours
    assert found["replay"].num_reversals <= 2
