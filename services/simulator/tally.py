"""What a run cost, and how its pools moved."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from services.autoscaler.view import Role

QUICK_S = 600.0
"""an order that goes the other way than the one before it, so soon after it, was a mistake"""


class Tally:
    """Of one run. What happens before `since_s` is not counted."""

    def __init__(self, since_s: float) -> None:
        self.since_s = since_s
        self.until_s: float | None = None
        self.orders: dict[Role, list[tuple[float, int]]] = {}
        """(second, replicas), the first of each role included"""
        self.path: list[tuple[float, dict[Role, int]]] = []
        """(second, pods with GPUs), at each change"""

    def order(self, now_s: float, role: Role, replicas: int) -> None:
        self.orders.setdefault(role, []).append((now_s, replicas))

    def placed(self, now_s: float, number: Mapping[Role, int]) -> None:
        """Of each role, the pods that have GPUs from now on."""
        if self.path and self.path[-1][0] == now_s:
            self.path.pop()
        if not self.path or self.path[-1][1] != number:
            self.path.append((now_s, dict(number)))

    def close(self, until_s: float) -> None:
        self.until_s = until_s

    @property
    def judged_s(self) -> float:
        return (self.until_s or self.since_s) - self.since_s

    def pod_hours(self, role: Role | None = None) -> float:
        """From placement to end, drains and starts included; of all roles unless one is named."""
        until_s = self.until_s or self.since_s
        total_s = 0.0
        ends_s = [at_s for at_s, _ in self.path[1:]] + [until_s]
        for (at_s, number), end_s in zip(self.path, ends_s, strict=True):
            seconds = max(0.0, min(end_s, until_s) - max(at_s, self.since_s))
            total_s += seconds * (sum(number.values()) if role is None else number.get(role, 0))
        return total_s / 3600

    def num_reversals(self) -> int:
        """Of all roles."""
        return sum(
            quick_reversals(orders[1:], orders[0][1], since_s=self.since_s)
            for orders in self.orders.values()
        )


def quick_reversals(
    orders: Sequence[tuple[float, int]],
    first: int,
    within_s: float = QUICK_S,
    since_s: float = 0.0,
) -> int:
    """Changes that go the other way than the one before them, and come so soon after it."""
    changes = []
    for at_s, replicas in orders:
        if replicas != first:
            changes.append((at_s, replicas > first))
        first = replicas
    return sum(
        a[1] != b[1] and b[0] - a[0] <= within_s and b[0] >= since_s for a, b in pairwise(changes)
    )
