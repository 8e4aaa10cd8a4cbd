"""The last decision, for people and for other autoscalers."""

from typing import Any

from services.autoscaler.autoscaler import Told
from services.autoscaler.view import Role, RoleDecision, RoleView


def explanation(told: Told | None, mode: str) -> dict[str, Any]:
    """A JSON object; `roles` is empty until something was decided."""
    if told is None:
        return {"mode": mode, "acts": False, "holds": "nothing is decided yet", "roles": {}}
    view, decision = told.view, told.decision
    return {
        "mode": mode,
        "acts": told.acts,
        "holds": decision.holds,
        "trouble": view.trouble,
        "start_s": view.start_s,
        "waiting": {"requests": view.waiting.num_requests, "tokens": view.waiting.num_tokens},
        "arrivals": {"requests": len(view.arrivals), "seconds": view.look_s},
        "roles": {
            role: _role(view.roles[role], of_role) for role, of_role in decision.roles.items()
        },
    }


def wanted(told: Told | None) -> dict[Role, int] | None:
    """Replicas by role; None before the first decision. Where another scaler acts on it, nobody
    drains first: a worker that is to go is not wanted any more."""
    if told is None:
        return None
    return {
        role: of_role.replicas - (0 if told.acts else len(of_role.drain))
        for role, of_role in told.decision.roles.items()
    }


def _role(view: RoleView, decision: RoleDecision) -> dict[str, Any]:
    return {
        "wanted": decision.replicas,
        "replicas": view.replicas,
        "least": view.least,
        "most": view.most,
        "registered": len(view.workers),
        "draining": sum(worker.is_draining for worker in view.workers),
        "pods": len(view.pods),
        "ready_pods": sum(pod.is_ready for pod in view.pods),
        "drain": list(decision.drain),
        "reason": decision.reason,
    }
