"""The pods of one role, as a cluster keeps them.

    ordered -> Pending while GPUs are out -> starts -> ready -> (drains) -> ends when it is empty

A smaller order takes the pod that is not ready before one that is, and of those the youngest, as a
ReplicaSet does. What such a pod still works on ends first; until then it holds its GPUs.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from services.autoscaler.view import PodView, Role, WorkerView
from services.gateway.owner.links.worker_view import WorkerView as RoutedWorker
from services.simulator.timeline import Timeline


class Worker(Protocol):
    """What runs in a pod."""

    routed: RoutedWorker

    @property
    def is_empty(self) -> bool: ...

    def seen(self, *, is_draining: bool) -> WorkerView: ...


@dataclass(eq=False)
class Pod:
    """One worker, or the wish for one."""

    name: str
    made_s: float
    placed_s: float | None = None
    """when it got its GPUs"""
    worker: Worker | None = None
    """once it has started"""
    is_draining: bool = False
    is_ending: bool = False
    """nobody orders it any more"""

    @property
    def is_ready(self) -> bool:
        return self.worker is not None and not self.is_draining and not self.is_ending


class Gpus:
    """Those of a cluster. None: as many as anybody asks for."""

    def __init__(self, most: int | None) -> None:
        self.most = most
        self.used = 0

    def take(self, number: int) -> bool:
        """Whether they were free."""
        if self.most is not None and self.used + number > self.most:
            return False
        self.used += number
        return True

    def give_back(self, number: int) -> None:
        self.used -= number


class Pods:
    """`make` starts a worker in a pod; `on_change` is called when one comes, goes or drains."""

    def __init__(
        self,
        role: Role,
        timeline: Timeline,
        gpus: Gpus,
        make: Callable[[str], Worker],
        on_change: Callable[[], None],
    ) -> None:
        self.role = role
        self.start_s = 0.0
        self.gpus_each = 1
        self.replicas = 0
        """that are ordered"""
        self.num_ending = 0
        """that nobody orders any more, and that have work left"""
        self._timeline = timeline
        self._gpus = gpus
        self._make = make
        self._on_change = on_change
        self._pods: list[Pod] = []
        self._num_made = 0

    @property
    def workers(self) -> list[Worker]:
        """That take work."""
        return [pod.worker for pod in self._pods if pod.is_ready and pod.worker]

    @property
    def started(self) -> list[Worker]:
        """That compute, ready or not."""
        return [pod.worker for pod in self._pods if pod.worker]

    @property
    def num_placed(self) -> int:
        return sum(pod.placed_s is not None for pod in self._pods)

    def order(self, replicas: int) -> None:
        assert replicas >= 0
        self.replicas = replicas
        ordered = [pod for pod in self._pods if not pod.is_ending]
        for _ in range(replicas - len(ordered)):
            self._pods.append(Pod(f"{self.role}-{self._num_made}", self._timeline.now_s))
            self._num_made += 1
        while len(ordered) > replicas:
            pod = max(ordered, key=_goes_first)
            ordered.remove(pod)
            self._end(pod)
        self._on_change()

    def drain(self, incarnations: Collection[str]) -> None:
        """Those, and no others."""
        for pod in self._pods:
            is_draining = pod.name in incarnations
            if pod.is_draining != is_draining:
                pod.is_draining = is_draining
                self._on_change()

    def place(self) -> None:
        """Pending pods get the GPUs that are free, the oldest first."""
        for pod in self._pods:
            if pod.placed_s is None:
                if not self._gpus.take(self.gpus_each):
                    return
                pod.placed_s = self._timeline.now_s
                self._timeline.after(self.start_s, _start(self, pod))

    def start(self, pod: Pod) -> None:
        """It has started, unless nobody wants it any more."""
        if pod in self._pods and pod.worker is None:
            pod.worker = self._make(pod.name)
            self._on_change()

    def reap(self) -> None:
        """Pods that end and have nothing left to do are gone."""
        gone = [pod for pod in self._pods if pod.is_ending and _is_done(pod)]
        for pod in gone:
            self._pods.remove(pod)
            self.num_ending -= 1
            if pod.placed_s is not None:
                self._gpus.give_back(self.gpus_each)
        if gone:
            self._on_change()

    def seen_workers(self) -> tuple[WorkerView, ...]:
        """Those that are registered: one that ends drains."""
        return tuple(
            pod.worker.seen(is_draining=pod.is_draining or pod.is_ending)
            for pod in self._pods
            if pod.worker
        )

    def seen_pods(self) -> tuple[PodView, ...]:
        """Without those that end: the cluster does not count them."""
        now_s = self._timeline.now_s
        return tuple(
            PodView(
                pod.name,
                pod.is_ready,
                now_s - pod.made_s,
                None if pod.placed_s is not None else now_s - pod.made_s,
            )
            for pod in self._pods
            if not pod.is_ending
        )

    def _end(self, pod: Pod) -> None:
        pod.is_ending = True
        self.num_ending += 1
        self.reap()


def _start(pods: Pods, pod: Pod) -> Callable[[], None]:
    return lambda: pods.start(pod)


def _is_done(pod: Pod) -> bool:
    return pod.worker is None or pod.worker.is_empty


def _goes_first(pod: Pod) -> tuple[bool, bool, float, str]:
    return (pod.placed_s is None, not pod.is_ready, pod.made_s, pod.name)
