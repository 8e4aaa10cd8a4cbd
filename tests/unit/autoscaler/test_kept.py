"""What users really had is told, and a replay that says otherwise takes nobody away.

Guarded against: "100 % in time" while most were late, since workers' step times were wrong.
"""

from dataclasses import replace

import pytest

from services.autoscaler.planning.kept import LEAST_JUDGED, Kept, kept
from services.autoscaler.planning.policy import HOLD_S, decide
from services.autoscaler.view import Arrival, Memory, Promise, RoleDecision, RoleMemory
from tests.support.cell_views import COSTS, NOW_S, cell, poisson, pool, worker, workers

PROMISE = Promise(wait_s=1.0, gap_s=0.05)
IN_TIME = Arrival(0.0, 100, 0, num_output_tokens=11, ttft_s=1.2, age_s=1.6)
"""its prompt takes 0.3 s, its tokens are 40 ms apart"""
OWN_S = 0.3
IDLE = Memory({"prefill": RoleMemory(NOW_S - HOLD_S - 1, need=1)})


def share(*arrivals: Arrival, prompts: bool = True, answers: bool = True) -> Kept:
    takes_s = [OWN_S] * len(arrivals)
    return kept(arrivals, takes_s, PROMISE, prompts=prompts, answers=answers)


@pytest.mark.parametrize(
    ("late", "by"),
    [
        (replace(IN_TIME, ttft_s=1.31, age_s=1.7), "prompts"),
        (replace(IN_TIME, age_s=1.71), "answers"),
        (replace(IN_TIME, ttft_s=None, num_output_tokens=0, age_s=1.31), "prompts"),
    ],
)
def test_a_role_is_judged_by_its_part_of_the_promise(late: Arrival, by: str) -> None:
    assert share(IN_TIME) == (1, 1.0)
    assert share(IN_TIME, late) == (2, 0.5)
    assert share(late, **{by: False}).share == 1.0
    only = {"prompts": False, "answers": False, by: True}
    assert share(late, **only) == (1, 0.0)


def test_what_runs_or_ended_early_without_a_token_is_not_judged() -> None:
    runs = replace(IN_TIME, ttft_s=None, age_s=None)
    left = replace(IN_TIME, ttft_s=None, num_output_tokens=0, age_s=1.2)
    assert share(runs, left) == (0, 1.0)
    assert share().text == ""
    one_token = replace(IN_TIME, num_output_tokens=1, age_s=9.0)
    assert share(one_token, IN_TIME).text == "of the 2 that ended 100.0 % really had"


def with_waits(wait_s: float, arrivals: list[Arrival]) -> list[Arrival]:
    """Each waited so long besides its computing."""
    return [
        replace(one, ttft_s=wait_s + own_s(one), age_s=wait_s + own_s(one) + 0.1)
        for one in arrivals
    ]


def own_s(arrival: Arrival) -> float:
    return arrival.num_prompt_tokens * COSTS.chunk_token_s + COSTS.step_s


def prefill_of(arrivals: list[Arrival]) -> RoleDecision:
    view = cell(pool(workers("p", 3)), arrivals=arrivals)
    return decide(view, IDLE)[0].roles["prefill"]


def test_a_replay_that_what_was_belies_takes_no_worker_away() -> None:
    calm = poisson(0.5)
    assert len(calm) > LEAST_JUDGED
    assert prefill_of(with_waits(0.2, calm)).drain
    late = prefill_of(with_waits(3.0, calm))
    assert not late.drain
    assert f"of the {len(calm)} that ended 0.0 % really had" in late.reason
    assert "fewer would do, but the replay is too good: 100.0 % where 0.0 % was" in late.reason
    few = with_waits(3.0, calm[: LEAST_JUDGED - 1])
    assert prefill_of([*few, *calm[LEAST_JUDGED - 1 :]]).drain


def test_a_replay_that_is_as_bad_as_what_was_is_believed() -> None:
    """More are ordered by it, and nothing is in doubt."""
    busy = with_waits(3.0, poisson(12.0))
    view = cell(pool(workers("p", 1)), arrivals=busy)
    reason = decide(view, IDLE)[0].roles["prefill"].reason
    assert "too good" not in reason


def test_one_worker_whose_costs_are_absurd_moves_nothing() -> None:
    slow = replace(worker("p-9"), costs=COSTS._replace(chunk_token_s=1.0))
    sane = cell(pool(workers("p", 3)), arrivals=poisson(0.5))
    odd = cell(pool([*workers("p", 2), slow]), arrivals=poisson(0.5))
    assert (
        decide(odd, Memory())[0].roles["prefill"].reason
        == decide(sane, Memory())[0].roles["prefill"].reason
    )
