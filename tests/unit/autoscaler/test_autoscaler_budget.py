"""A budget of GPUs is used for the pair of roles that serves most requests.

Guarded against: one role that takes all, and an order that goes beyond the budget.
"""

from dataclasses import replace

import pytest

from services.autoscaler.planning.budget import Pairs
from services.autoscaler.planning.decode_replay import DecodeReplay
from services.autoscaler.planning.policy import HOLD_S, decide
from services.autoscaler.planning.prefill_replay import PrefillReplay, computing_s
from services.autoscaler.planning.typical_worker import TypicalWorker
from services.autoscaler.view import Memory, Promise, RoleMemory, View
from tests.support.cell_views import COSTS, NOW_S, cell, poisson, pool, workers

PROMISE = Promise(gap_s=0.007)


def _crowded(num_prefill: int, num_decode: int, max_gpus: int | None = None) -> View:
    """More than twelve workers would be needed."""
    prefill, decode = pool(workers("p", num_prefill)), pool(workers("d", num_decode))
    arrivals = poisson(40.0, 300.0, num_output=200)
    return cell(prefill, decode, arrivals, promise=PROMISE, max_gpus=max_gpus)


def test_twelve_gpus_are_split_so_that_both_roles_serve() -> None:
    free, _ = decide(_crowded(4, 4), Memory())
    wanted = [free.roles[role].replicas for role in ("prefill", "decode")]
    assert sum(wanted) > 12
    decision, _ = decide(_crowded(4, 4, max_gpus=12), Memory())
    pair = [decision.roles[role].replicas for role in ("prefill", "decode")]
    assert sum(pair) == 12
    assert pair[0] / pair[1] == pytest.approx(wanted[0] / wanted[1], rel=0.5)
    assert f"12 GPUs are best used for {pair[0]} and {pair[1]}" in decision.roles["decode"].reason


@pytest.mark.parametrize("rate_s", [25.0, 30.0, 40.0])
@pytest.mark.parametrize("wanted", [(9, 7), (12, 12), (6, 11)])
def test_no_pair_of_the_budget_is_better(rate_s: float, wanted: tuple[int, int]) -> None:
    typical = TypicalWorker(COSTS, 2048, 4000, 16)
    arrivals = poisson(rate_s, 45.0, num_output=200)
    takes_s = computing_s(arrivals, typical)
    prefill = PrefillReplay.of(arrivals, takes_s, 1.0)
    decode = DecodeReplay.of(arrivals, takes_s, typical, PROMISE)
    pairs = Pairs(wanted, (1, 1), (1, 1), 12)
    joint = [
        prefill.share(number) * decode.share(pairs.num_decode(number))
        for number in range(1, min(wanted[0], 11) + 1)
    ]
    assert pairs.best(prefill, decode)[1] == pytest.approx(max(joint), abs=0.01)


def test_no_order_goes_beyond_the_budget_while_the_other_role_has_too_many() -> None:
    decision, memory = decide(_crowded(9, 3, max_gpus=12), Memory())
    assert [item.replicas for item in decision.roles.values()] == [9, 3]
    assert "are not free yet" in decision.holds
    waited = replace(memory.roles["prefill"], grew_s=NOW_S - HOLD_S - 1)
    decision, _ = decide(_crowded(9, 3, max_gpus=12), Memory({"prefill": waited}))
    assert len(decision.roles["prefill"].drain) == 1


def test_a_worker_of_many_gpus_counts_as_many() -> None:
    view = _crowded(1, 1, max_gpus=12)
    wide = {role: replace(item, num_gpus=4) for role, item in view.roles.items()}
    decision, _ = decide(replace(view, roles=wide), Memory())
    assert sum(4 * item.replicas for item in decision.roles.values()) <= 12


def test_a_budget_that_does_not_hold_the_least_orders_nothing() -> None:
    view = _crowded(1, 1, max_gpus=1)
    decision, _ = decide(view, Memory({"prefill": RoleMemory(0.0)}))
    assert [item.replicas for item in decision.roles.values()] == [1, 1]
