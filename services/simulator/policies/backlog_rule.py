"""KEDA by the tokens that wait: the rule that llm-d publishes for prefill and decode.

From its guide "Token-Aware Autoscaling" (guides/workload-autoscaling/keda-epp-token-aware, overlay
pd-disaggregation, of 2026): uncached prompt tokens sent to prefill and not computed, divided by
what a worker computes in a second, 1.5 s of it per replica; KV use summed over decode workers, 0.8
per replica. The guide adjusts 1.5 s to the promise: promised time less the prompt's own. Here what
is promised is a wait without the prompt's own time, so it is the promised wait. Asked each 15 s.
Its pace: one pod more in 180 s, one fewer in 300 s after 300 s. The other pace is the default of
Kubernetes. Workers that do both have both rules, and the one that asks for more counts.
"""

from services.autoscaler.view import Decision, Role, RoleDecision, RoleView, View
from services.simulator.policies.pace import Behaviour, Limit, Pace, by_average
from services.simulator.policies.policy import Seen

GUIDE = Behaviour(up=(Limit(1, 180.0),), down=(Limit(1, 300.0),))
USED = 0.8


class BacklogPolicy:
    """`token_s`: seconds that a worker needs for a prompt token."""

    every_s = 15.0

    def __init__(self, token_s: float, behaviour: Behaviour) -> None:
        self._token_s = token_s
        self._behaviour = behaviour
        self._paces: dict[Role, Pace] = {}

    def decide(self, seen: Seen) -> Decision:
        view, roles = seen.view, {}
        for role, pool in view.roles.items():
            wish = 0  # in trouble the query ends in `or vector(0)`
            if role in seen.busy and not view.trouble:
                wish = by_average(self._waiting_s(view, pool), view.promise.wait_s, pool)
            if role == "decode" and not view.trouble:
                wish = max(wish, by_average(seen.used, USED, pool))
            pace = self._paces.setdefault(role, Pace(self._behaviour))
            roles[role] = RoleDecision(pace.order(view.now_s, wish, pool))
        return Decision(roles)

    def _waiting_s(self, view: View, pool: RoleView) -> float:
        """All that came and is not computed, wherever it waits."""
        sent = sum(worker.num_queued_tokens for worker in pool.workers)
        return (sent + view.waiting.num_tokens) * self._token_s
