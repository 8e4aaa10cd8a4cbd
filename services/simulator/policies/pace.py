"""How a HorizontalPodAutoscaler turns a wish into an order: its tolerance, windows and limits.

As the documentation of Kubernetes describes algorithm and defaults ("Horizontal Pod Autoscaling",
`autoscaling/v2`): within 10 % of the target nothing changes; a smaller wish counts only if nothing
larger was wished for in the last 300 s; in 15 s as many pods are added as there are, or 4.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from services.autoscaler.view import RoleView

TOLERANCE = 0.1


@dataclass(frozen=True)
class Limit:
    """`pods`, or a share of those there are, in `period_s`."""

    pods: int
    period_s: float
    share: float = 0.0


@dataclass(frozen=True)
class Behaviour:
    """`spec.behavior`; of several limits the one that allows most counts."""

    up: Sequence[Limit] = (Limit(4, 15.0), Limit(0, 15.0, share=1.0))
    down: Sequence[Limit] = (Limit(0, 15.0, share=1.0),)
    down_window_s: float = 300.0


class Pace:
    """Remembers the wishes and orders of one role."""

    def __init__(self, behaviour: Behaviour) -> None:
        self._behaviour = behaviour
        self._wishes: list[tuple[float, int]] = []
        self._changes: list[tuple[float, int]] = []
        """(second, pods more or fewer)"""

    def order(self, now_s: float, wish: int, role: RoleView) -> int:
        """Replicas to order now."""
        now = role.replicas
        since_s = now_s - self._behaviour.down_window_s
        self._wishes = [item for item in self._wishes if item[0] > since_s] + [(now_s, wish)]
        if wish < now:
            wish = min(now, max(number for _, number in self._wishes))
        if wish > now:
            wish = min(wish, self._most(now_s, now))
        elif wish < now:
            wish = max(wish, self._least(now_s, now))
        wish = min(max(wish, role.least), role.most)
        if wish != now:
            self._changes.append((now_s, wish - now))
        return wish

    def _most(self, now_s: float, now: int) -> int:
        found = [now]
        for limit in self._behaviour.up:
            added = self._changed(now_s, limit.period_s, 1)
            begun = now - added
            found.append(begun + max(limit.pods, ceil(begun * limit.share)))
        return max(found)

    def _least(self, now_s: float, now: int) -> int:
        found = [now]
        for limit in self._behaviour.down:
            begun = now + self._changed(now_s, limit.period_s, -1)
            found.append(begun - max(limit.pods, ceil(begun * limit.share)))
        return min(found)

    def _changed(self, now_s: float, period_s: float, sign: int) -> int:
        """Pods added (1) or taken away (-1) in that time."""
        recent = [by for at_s, by in self._changes if at_s > now_s - period_s]
        return sum(abs(by) for by in recent if by * sign > 0)


def by_ratio(ratio: float, role: RoleView) -> int:
    """Replicas for a metric that is `ratio` times its target on each ready pod. Those that are not
    ready count as idle when more are wished for."""
    num_ready = sum(pod.is_ready for pod in role.pods)
    if not num_ready or abs(ratio - 1) <= TOLERANCE:
        return role.replicas
    num_unready = len(role.pods) - num_ready
    if ratio > 1 and num_unready:
        ratio *= num_ready / len(role.pods)
        if ratio <= 1 + TOLERANCE:
            return role.replicas
        return ceil(ratio * len(role.pods) - 1e-9)
    return ceil(ratio * num_ready - 1e-9)


def by_average(total: float, target: float, role: RoleView) -> int:
    """Replicas for an external metric of type AverageValue: `total` is shared among them."""
    if role.replicas and abs(total / (target * role.replicas) - 1) <= TOLERANCE:
        return role.replicas
    return ceil(total / target - 1e-9)
