"""Pods of two Deployments behind a fake API server, each a worker that only registers.

They come and go as the server's replicas say; of those to go, the ones that are not ready go first,
as a ReplicaSet has it. A pod drains when its worker is asked to, and is empty a moment later.
"""

import asyncio
from dataclasses import dataclass, field, replace

from services.autoscaler.view import Role
from shared.message_parts.step_costs import StepCosts
from shared.protocol import Load
from shared.state.registry import WorkerEntry, WorkerRegistry
from tests.support.fakes.kube_api import FakeKubeApi

TURN_S = 0.05
START_S = 0.2
WORK_S = 0.3
"""that what a worker does takes to end, once it drains"""
POOL, RELEASE = "m@rev:a", "rel"
COSTS = StepCosts(1e-3, 1e-5, 1e-9, 1e-3, 1e-9)
"""a prompt of 1,000 tokens takes a second"""
LOAD = Load(8_000, 0, 1, 0, 100_000, 100_000, 0, 0, step_costs=COSTS)


@dataclass
class Pod:
    """One pod and its worker."""

    name: str
    role: Role
    age_s: float = 0.0
    drained_s: float | None = None
    """for how long it drains; None: it serves"""

    @property
    def is_up(self) -> bool:
        return self.age_s >= START_S

    @property
    def has_work_left(self) -> bool:
        """What it did when its drain began takes a moment to end."""
        return self.drained_s is not None and self.drained_s < WORK_S


@dataclass
class ScaledPods:
    """`run` until it is cancelled."""

    api: FakeKubeApi
    registry: WorkerRegistry
    deployments: dict[Role, str]
    pods: list[Pod] = field(default_factory=list)
    gone: list[Pod] = field(default_factory=list)
    """deleted, as they were then"""
    works: bool = False
    """whoever serves is at work"""
    freezes: bool = False
    """nobody registers"""
    _number: int = 0

    async def run(self) -> None:
        while True:
            self._scale()
            for pod in self.pods:
                pod.age_s += TURN_S
                if pod.is_up and not self.freezes:
                    await self._register(pod)
            self._show()
            await asyncio.sleep(TURN_S)

    def names(self, role: Role) -> list[str]:
        return [pod.name for pod in self.pods if pod.role == role]

    def _scale(self) -> None:
        for role, deployment in self.deployments.items():
            of_role = [pod for pod in self.pods if pod.role == role]
            missing = self.api.replicas[deployment] - len(of_role)
            for _ in range(missing):
                self._number += 1
                self.pods.append(Pod(f"{deployment}-{self._number}", role))
            of_role.sort(key=lambda pod: (pod.drained_s is None, pod.age_s))
            for pod in of_role[: max(0, -missing)]:
                self.pods.remove(pod)
                self.gone.append(pod)

    async def _register(self, pod: Pod) -> None:
        draining = pod.drained_s is not None
        entry = WorkerEntry(
            worker_id=pod.name,
            incarnation=f"{pod.name}.1",
            role=pod.role,
            host="127.0.0.1",
            port=1,
            pool=POOL,
            pid=1,
            version="1",
            model="demo",
            max_model_len=8192,
            block_size=16,
            load=replace(LOAD, state="draining") if draining else LOAD,
            num_attempts=int(pod.has_work_left or (self.works and not draining)),
            step_tokens=2048,
        )
        if not await self.registry.register(entry):
            pod.drained_s = None
        else:
            pod.drained_s = 0.0 if pod.drained_s is None else pod.drained_s + TURN_S

    def _show(self) -> None:
        self.api.pods = [
            {
                "metadata": {
                    "name": pod.name,
                    "creationTimestamp": self.api.now().strftime("%Y-%m-%dT%H:%M:%SZ"),
                    "labels": {
                        "app.kubernetes.io/name": "baton",
                        "app.kubernetes.io/instance": RELEASE,
                        "app.kubernetes.io/component": pod.role,
                    },
                },
                "status": {
                    "phase": "Running",
                    "conditions": [
                        {
                            "type": "Ready",
                            "status": str(pod.is_up and pod.drained_s is None),
                        }
                    ],
                },
            }
            for pod in self.pods
        ]
