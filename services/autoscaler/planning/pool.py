"""The workers of one role as the policy counts them: those that serve, come and go.

Pure. A cell without a cluster has no pods: there what is ordered and not registered is coming.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from services.autoscaler.view import PodView, Role, RoleMemory, RoleView, View, WorkerView

PATIENCE = 2.0
"""times the usual start: a pod that has had no place for so long is not about to get one"""
NO_PLACE_S = 600.0
"""before more is ordered than the cluster had a place for: nodes are added, or others' work ends,
within minutes, and a pod that waits in vain raises alarms"""


@dataclass(frozen=True)
class Pool:
    """One role now, with what is remembered of it."""

    role: Role
    view: RoleView
    memory: RoleMemory
    now_s: float
    start_s: float

    @classmethod
    def of(cls, view: View, memory: RoleMemory, role: Role) -> "Pool":
        return cls(role, view.roles[role], memory, view.now_s, view.start_s)

    @property
    def num_lost(self) -> int:
        """Pods that the cluster will not place."""
        return sum(map(self._is_lost, self.view.pods))

    @property
    def replicas(self) -> int:
        """That are ordered, without those that are lost; the least stays ordered."""
        ordered = self.view.replicas
        return max(min(ordered, self.view.least), ordered - self.num_lost)

    @property
    def cap(self) -> int:
        """No more are ordered: the limit, or what the cluster lately had a place for."""
        placeable, no_place_s = self.view.most, self.memory.no_place_s
        if self.num_lost:
            placeable = self.replicas
        elif no_place_s is not None and self.now_s - no_place_s < NO_PLACE_S:
            placeable = self.memory.placeable
        return max(self.view.least, min(self.view.most, placeable))

    @property
    def victim(self) -> WorkerView | None:
        """The worker that drains for us, while it is there."""
        name = self.memory.victim
        found = [worker for worker in self.view.workers if name and worker.incarnation == name]
        return found[0] if found else None

    @property
    def serving(self) -> Sequence[WorkerView]:
        """Workers that take new work, and go on to do so."""
        victim = self.victim
        return [item for item in self.view.workers if item is not victim and not item.is_draining]

    @property
    def is_starting(self) -> bool:
        """Whether a worker comes, so that it cannot be seen yet what it will change."""
        num_there = len(self.serving) + self._num_drained
        return self.replicas > num_there or any(map(self._is_unready, self.view.pods))

    @property
    def coming_s(self) -> Sequence[float]:
        """Seconds that each of the workers that come will still take; those not seen yet take a
        whole start."""
        there = {worker.name for worker in self.view.workers}
        unready = [pod for pod in self.view.pods if self._is_unready(pod) and pod.name not in there]
        known_s = [max(0.0, self.start_s - pod.age_s) for pod in unready]
        num_seen = len(self.view.pods) if self.view.pods else len(self.serving) + self._num_drained
        return known_s + [self.start_s] * (self.view.replicas - num_seen)

    @property
    def _num_drained(self) -> int:
        """1 while a victim's place is still ordered."""
        return 1 if self.victim and not self.memory.is_going else 0

    def is_empty(self, victim: WorkerView) -> bool:
        """Whether nothing is lost with it, and its pod is the one that a smaller order takes: one
        that is not ready goes first."""
        if not victim.is_draining or victim.num_attempts or victim.num_queued_tokens:
            return False
        pods = self.view.pods
        return not pods or any(pod.name == victim.name and not pod.is_ready for pod in pods)

    def choose_victim(self) -> WorkerView | None:
        """The worker that is done first; of equal ones the youngest, whose cache is the coldest."""
        return min(
            self.serving,
            key=lambda worker: (
                worker.num_attempts,
                worker.num_queued_tokens,
                worker.age_s,
                worker.incarnation,
            ),
            default=None,
        )

    def _is_lost(self, pod: PodView) -> bool:
        since_s = pod.unschedulable_s
        return not pod.is_ready and since_s is not None and since_s > PATIENCE * self.start_s

    def _is_unready(self, pod: PodView) -> bool:
        is_victim = pod.name == (self.victim.name if self.victim else None)
        return not (pod.is_ready or is_victim or self._is_lost(pod))
