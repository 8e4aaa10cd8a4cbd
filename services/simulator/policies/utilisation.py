"""A HorizontalPodAutoscaler on how busy workers are."""

from services.autoscaler.view import Decision, Role, RoleDecision
from services.simulator.policies.pace import Behaviour, Pace, by_average, by_ratio
from services.simulator.policies.policy import Seen


class UtilisationPolicy:
    """Prefill by the share of time that its workers compute, decode by the share of their KV blocks
    that is taken. Asked each 15 s, as `--horizontal-pod-autoscaler-sync-period` is by default."""

    every_s = 15.0

    def __init__(self, target: float) -> None:
        self._target = target
        self._paces: dict[Role, Pace] = {}

    def decide(self, seen: Seen) -> Decision:
        view, roles = seen.view, {}
        for role, pool in view.roles.items():
            if role == "prefill":
                wish = by_ratio(seen.busy[role] / self._target, pool)
            else:
                wish = by_average(seen.used, self._target, pool)
            pace = self._paces.setdefault(role, Pace(Behaviour()))
            number = pool.replicas if view.trouble else pace.order(view.now_s, wish, pool)
            roles[role] = RoleDecision(number)
        return Decision(roles)
