"""The last decision, for people, for other autoscalers and for gateways."""

from typing import Any

from services.autoscaler.autoscaler import Told
from services.autoscaler.view import RoleDecision, RoleView
from shared.state.notes.scaling import RoleScaling, Scaling

UNDECIDED = "nothing is decided yet"


def undecided(because: str) -> str:
    """`because`: why nothing could be seen; empty before the first look."""
    return f"{UNDECIDED}: {because}" if because else UNDECIDED


def explanation(told: Told | None, mode: str, unseen_because: str = "") -> dict[str, Any]:
    """A JSON object; `roles` is empty until something was decided."""
    if told is None:
        return {"mode": mode, "acts": False, "holds": undecided(unseen_because), "roles": {}}
    view, decision = told.view, told.decision
    return {
        "mode": mode,
        "acts": told.acts,
        "holds": decision.holds,
        "trouble": view.trouble,
        "start_s": view.start_s,
        "waiting": {"requests": view.waiting.num_requests, "tokens": view.waiting.num_tokens},
        "arrivals": {"requests": len(view.judged), "seconds": round(view.judged_s, 1)},
        "roles": {
            role: _role(view.roles[role], of_role, told.wanted[role])
            for role, of_role in decision.roles.items()
        },
    }


def scaling(told: Told, mode: str) -> Scaling:
    """The same in short."""
    view, decision = told.view, told.decision
    roles = tuple(
        RoleScaling(
            role=role,
            replicas=view.roles[role].replicas,
            wanted=told.wanted[role],
            num_draining=view.roles[role].num_draining,
            reason=of_role.reason,
        )
        for role, of_role in decision.roles.items()
    )
    return Scaling(mode, told.acts, decision.holds, view.trouble, roles)


def _role(view: RoleView, decision: RoleDecision, wanted: int) -> dict[str, Any]:
    return {
        "wanted": wanted,
        "replicas": view.replicas,
        "least": view.least,
        "most": view.most,
        "registered": len(view.workers),
        "draining": view.num_draining,
        "pods": len(view.pods),
        "ready_pods": sum(pod.is_ready for pod in view.pods),
        "drain": list(decision.drain),
        "reason": decision.reason,
    }
