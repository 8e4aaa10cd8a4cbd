"""A cell whose prefill workers are pods of a cluster, simulated from one decision to the next.

Prompts wait in one line and are computed one at a time by each worker. A pod needs `start_s` to its
first prompt. A smaller order takes the pod that is not ready, as a ReplicaSet does.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from services.autoscaler.planning.policy import decide
from services.autoscaler.planning.prefill_replay import computing_s
from services.autoscaler.planning.typical_worker import TypicalWorker
from services.autoscaler.view import (
    Arrival,
    Decision,
    Memory,
    PodView,
    RoleView,
    View,
    WorkerView,
)
from shared.queue.backlog import Waiting
from tests.support.cell_views import COSTS

TICK_S = 10.0
TYPICAL = TypicalWorker(COSTS, step_tokens=2048, num_blocks=4000, block_size=16)


@dataclass
class Pod:
    """One prefill worker."""

    name: str
    made_s: float
    free_s: float = 0.0
    """when it is done with what it computes"""
    is_draining: bool = False


@dataclass
class SimulatedCell:
    """Begins with `num_workers` that are ready, and asks the policy each `TICK_S`."""

    arrivals: Sequence[Arrival]
    num_workers: int
    start_s: float = 90.0
    most: int = 16
    most_placed: int = 1000
    """pods that the cluster has a place for"""
    decide: Callable[[View, Memory], tuple[Decision, Memory]] = decide
    now_s: float = 0.0
    waits_s: list[tuple[float, float]] = field(default_factory=list)
    """(arrival, wait) of each prompt that began"""
    orders: list[tuple[float, int]] = field(default_factory=list)
    """(second, replicas), at each change"""
    decision: Decision = field(default_factory=lambda: Decision({}))

    def __post_init__(self) -> None:
        self._pods = [Pod(f"prefill-{i}", -1000.0) for i in range(self.num_workers)]
        self._num_made = self.num_workers
        self._replicas = self.num_workers
        self._begun = 0
        self._memory = Memory()
        self._at_s = [arrival.at_s for arrival in self.arrivals]

    def run(self, until_s: float) -> None:
        while self.now_s < until_s:
            self.now_s += TICK_S
            self._compute()
            self.decision, self._memory = self.decide(self.view(), self._memory)
            self._obey()

    def view(self) -> View:
        num_known = bisect_right(self._at_s, self.now_s)
        first = bisect_right(self._at_s, self.now_s - 900)
        waiting = self.arrivals[self._begun : num_known]
        pods = tuple(self._pod_view(i, pod) for i, pod in enumerate(self._pods))
        workers = tuple(self._worker_view(pod) for pod in self._up())
        prefill = RoleView(self._replicas, 1, self.most, workers, pods, num_gpus=1)
        tokens = sum(item.num_prompt_tokens for item in waiting)
        return View(
            self.now_s,
            {"prefill": prefill},
            tuple(self.arrivals[first:num_known]),
            Waiting(len(waiting), tokens),
            start_s=self.start_s,
        )

    def _up(self) -> list[Pod]:
        placed = self._pods[: self.most_placed]
        return [pod for pod in placed if self.now_s - pod.made_s >= self.start_s]

    def _worker_view(self, pod: Pod) -> WorkerView:
        return WorkerView(
            name=pod.name,
            incarnation=f"{pod.name}.0",
            age_s=self.now_s - pod.made_s - self.start_s,
            is_draining=pod.is_draining,
            num_attempts=int(pod.free_s > self.now_s),
            costs=COSTS,
        )

    def _pod_view(self, index: int, pod: Pod) -> PodView:
        is_ready = not pod.is_draining and pod in self._up()
        age_s = self.now_s - pod.made_s
        return PodView(pod.name, is_ready, age_s, age_s if index >= self.most_placed else None)

    def _compute(self) -> None:
        serving = [pod for pod in self._up() if not pod.is_draining]
        while serving and self._begun < len(self.arrivals):
            arrival = self.arrivals[self._begun]
            pod = min(serving, key=lambda item: item.free_s)
            begins_s = max(arrival.at_s, pod.free_s, pod.made_s + self.start_s)
            if begins_s > self.now_s:
                break
            pod.free_s = begins_s + computing_s([arrival], TYPICAL)[0]
            self.waits_s.append((arrival.at_s, begins_s - arrival.at_s))
            self._begun += 1

    def _obey(self) -> None:
        wanted = self.decision.roles["prefill"]
        for pod in self._pods:
            pod.is_draining = f"{pod.name}.0" in wanted.drain
        if wanted.replicas != self._replicas:
            self.orders.append((self.now_s, wanted.replicas))
            self._replicas = wanted.replicas
        while len(self._pods) < self._replicas:
            self._pods.append(Pod(f"prefill-{self._num_made}", self.now_s))
            self._num_made += 1
        up = self._up()
        while len(self._pods) > self._replicas:
            self._pods.remove(
                max(self._pods, key=lambda pod: (pod not in up, pod.is_draining, pod.made_s))
            )

    def late_share(self, since_s: float, wait_s: float = 1.0) -> float:
        """Of the prompts that came since."""
        judged = [wait for at_s, wait in self.waits_s if at_s >= since_s]
        return sum(wait > wait_s for wait in judged) / max(1, len(judged))


def quick_reversals(orders: Sequence[tuple[float, int]], first: int, within_s: float = 600) -> int:
    """Changes that go the other way than the one before them, and come so soon after it."""
    changes = []
    for at_s, replicas in orders:
        changes.append((at_s, replicas > first))
        first = replicas
    pairs = pairwise(changes)
    return sum(a[1] != b[1] and b[0] - a[0] <= within_s for a, b in pairs)
