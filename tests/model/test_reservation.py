"""The reservation order is free of deadlock, and the two orders it replaces are not."""

from dataclasses import replace

import pytest

from tests.model.reservation import Pools, deadlocks

SIZES = [
    Pools(2, 1, 2, 2, 2),
    Pools(4, 2, 4, 4, 2),
    Pools(5, 2, 3, 4, 2),
    Pools(5, 2, 6, 3, 3),
]


@pytest.mark.parametrize("pools", SIZES, ids=str)
def test_decode_reserves_after_start_and_prefill_takes_all_at_once(pools: Pools) -> None:
    num_states, num_dead = deadlocks(pools)
    assert num_states > 10
    assert num_dead == 0


@pytest.mark.parametrize(
    "change", [{"reserve_at": "dispatch"}, {"whole": False}], ids=["at dispatch", "by chunk"]
)
def test_the_other_orders_deadlock(change: dict[str, object]) -> None:
    dead = [deadlocks(replace(pools, **change))[1] for pools in SIZES]  # type: ignore[arg-type]
    assert any(dead)
