"""What counts as an order that was taken back.

Guarded against: a counter that sees none, and one that counts orders of the same direction.
"""

import pytest

from services.autoscaler.view import ROLES
from services.simulator.tally import Tally, quick_reversals


@pytest.mark.parametrize(
    ("orders", "number"),
    [
        ([], 0),
        ([(10, 3), (20, 4), (30, 5)], 0),
        ([(10, 3), (20, 2)], 1),
        ([(10, 3), (20, 2), (30, 3)], 2),
        ([(10, 3), (610, 2)], 1),
        ([(10, 3), (611, 2)], 0),
        ([(10, 3), (20, 3), (30, 2)], 1),
        ([(10, 1), (20, 2)], 1),
    ],
)
def test_reversals_are_changes_of_direction_within_ten_minutes(
    orders: list[tuple[float, int]], number: int
) -> None:
    assert quick_reversals(orders, 2) == number


def test_those_before_the_judged_time_are_not_counted_and_roles_are_apart() -> None:
    tally = Tally(since_s=100)
    for role in ROLES:
        tally.order(0, role, 2)
    for at_s, replicas in ((10, 3), (20, 2), (110, 3), (120, 2)):
        tally.order(at_s, "prefill", replicas)
    tally.order(115, "decode", 3)
    assert tally.num_reversals() == 2
