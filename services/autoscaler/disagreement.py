"""What two sources say that does not fit together: then nothing may be done, whatever the numbers.

A worker that its cluster calls ready and that is not registered is cut off from Redis, or is
another release's; one that is registered and has no pod belongs to another cell, or the cluster
shows an old state. Acting on either would order pods for work that is not there, or take away
workers that serve.
"""

from collections.abc import Iterable, Mapping

from services.autoscaler.view import Role, RoleView

PATIENCE_S = 10.0
"""a worker registers each second, and what a cluster shows is seconds old"""
STRANGERS_HOLD_S = 300.0
"""after somebody else ordered replicas: there was a reason, and it takes a while to show"""


class Disagreement:
    """Remembers since when what does not fit."""

    def __init__(self) -> None:
        self._since_s: dict[str, float] = {}
        """by sentence"""
        self._ordered: dict[Role, int] = {}
        """replicas as we last read or ordered them"""
        self._strangers_s: dict[Role, float] = {}
        """when somebody else ordered"""

    def ordered(self, role: Role, replicas: int) -> None:
        """By us."""
        self._ordered[role] = replicas

    def see(self, roles: Mapping[Role, RoleView], now_s: float, *, leads: bool) -> str:
        """One sentence, empty if all fits. `leads`: this process orders; while it does not, others
        are to."""
        sentences = [sentence for role, view in roles.items() for sentence in _misfits(role, view)]
        self._since_s = {text: self._since_s.get(text, now_s) for text in sentences}
        for text, since_s in self._since_s.items():
            if now_s - since_s > PATIENCE_S:
                return text
        for role, view in roles.items():
            if leads and self._ordered.get(role, view.replicas) != view.replicas:
                self._strangers_s[role] = now_s
            self._ordered[role] = view.replicas
        if not leads:
            self._strangers_s.clear()
        for role, since_s in self._strangers_s.items():
            if now_s - since_s < STRANGERS_HOLD_S:
                return f"somebody else ordered {roles[role].replicas} {role} workers"
        return ""


def _misfits(role: Role, view: RoleView) -> Iterable[str]:
    if not view.pods:
        return
    registered = {worker.name for worker in view.workers}
    ready = {pod.name for pod in view.pods if pod.is_ready}
    known = {pod.name for pod in view.pods}
    draining = {worker.name for worker in view.workers if worker.is_draining}
    for name in sorted(ready - registered):
        yield f"{role} pod {name} is ready, and no such worker is registered"
    for name in sorted(registered - known - draining):
        yield f"{role} worker {name} is registered, and has no pod"
