"""A HorizontalPodAutoscaler on how busy workers are."""

from collections import deque
from statistics import fmean

from services.autoscaler.view import Decision, Role, RoleDecision
from services.simulator.policies.pace import Behaviour, Pace, by_average, by_ratio
from services.simulator.policies.policy import Seen

FRESH_S = 15.0
"""as fresh as a metric can be: that of metrics-server, at its default resolution"""
RATE_S = 120.0
"""a rate over two minutes, as prometheus-adapter's walk-through takes of a metric of one's own"""


class UtilisationPolicy:
    """Prefill by the share of time that its workers compute, decode by the share of their KV blocks
    that is taken; workers that do both by whichever of the two asks for more. Asked each 15 s, as
    `--horizontal-pod-autoscaler-sync-period` is by default."""

    every_s = 15.0

    def __init__(self, target: float, window_s: float = FRESH_S) -> None:
        """`window_s`: over which the busy share is taken."""
        self._target = target
        self._busy: deque[float] = deque(maxlen=max(1, round(window_s / self.every_s)))
        self._paces: dict[Role, Pace] = {}

    def decide(self, seen: Seen) -> Decision:
        view, roles = seen.view, {}
        for role, pool in view.roles.items():
            wishes = []
            if role in seen.busy:
                self._busy.append(seen.busy[role])
                wishes.append(by_ratio(fmean(self._busy) / self._target, pool))
            if role == "decode":
                wishes.append(by_average(seen.used, self._target, pool))
            wish = max(wishes)
            pace = self._paces.setdefault(role, Pace(Behaviour()))
            number = pool.replicas if view.trouble else pace.order(view.now_s, wish, pool)
            roles[role] = RoleDecision(number)
        return Decision(roles)
