"""A simulated cell under a policy: arrivals, a gateway, workers in pods, and turns of the policy.

    arrival -> gateway -> prefill worker -> decode worker -> ended
                             ^ pods come and go as ordered ^
    every few seconds: what a real autoscaler would see -> policy -> orders and drains

Where the setup has no decode role, a request ends when its prompt is computed; where it has no
prefill role, decode workers do both.
"""

import random
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from services.autoscaler.view import KNOWN_S, Arrival, Promise, Role, RoleView, View
from services.simulator.decode_worker import DecodeWorker
from services.simulator.gateway import Gateway
from services.simulator.mixed_worker import MixedWorker
from services.simulator.pods import Gpus, Pods, Worker
from services.simulator.policies.policy import Policy, Seen
from services.simulator.prefill_worker import PrefillWorker
from services.simulator.request import Request
from services.simulator.tally import Tally
from services.simulator.timeline import Timeline
from services.simulator.worker_kind import DECODE, PREFILL, WorkerKind

WARM_S = 900.0
"""until a policy knows as much as it ever does"""
KINDS: Mapping[Role, WorkerKind] = {"prefill": PREFILL, "decode": DECODE}


@dataclass(frozen=True)
class Setup:
    """A cell and its cluster."""

    first: Mapping[Role, int] = field(default_factory=lambda: {"prefill": 4})
    """workers that are ready at the beginning, of each role there is"""
    kinds: Mapping[Role, WorkerKind] = field(default_factory=lambda: KINDS)
    start_s: float = 90.0
    """from a pod's placement to its first work"""
    most: int = 32
    """workers of a role that may be ordered"""
    promise: Promise = field(default_factory=Promise)
    num_gpus: int | None = None
    """in the cluster; pods beyond them stay Pending"""
    max_gpus: int | None = None
    """that the policy is told it may use"""
    warm_s: float = WARM_S
    """at the beginning, that is not judged"""
    blind_s: tuple[float, float] = (0.0, 0.0)
    """between these the autoscaler can see nothing"""
    seed: int = 1

    @property
    def computes(self) -> Role:
        """The role whose workers compute prompts."""
        return "prefill" if "prefill" in self.first else "decode"


class SimulatedCell:
    """`run`, then read `tally`."""

    def __init__(self, setup: Setup, arrivals: Sequence[Arrival], policy: Policy) -> None:
        """`arrivals`: oldest first."""
        self.setup = setup
        self.timeline = Timeline()
        self.requests: list[Request] = []
        self.num_ended = 0
        self._policy = policy
        self._arrivals = arrivals
        self._at_s = [arrival.at_s for arrival in arrivals]
        self._gateway = Gateway(random.Random(setup.seed))  # noqa: S311
        self._gpus = Gpus(setup.num_gpus)
        self._busy_s: dict[Worker, float] = {}
        """of each worker that computes prompts, when the policy last looked"""
        self._is_changing = False
        self.pods = {role: self._make_pods(role) for role in setup.first}
        self.tally = Tally(setup.warm_s)
        for role, number in setup.first.items():
            self._order(role, number)
        for pods in self.pods.values():  # those of the beginning are there at once
            pods.start_s = setup.start_s

    def run(self, until_s: float, settle_s: float = 0.0) -> None:
        """`settle_s`: what arrived by `until_s` may go on to its end for so long."""
        timeline = self.timeline
        timeline.every(self._policy.every_s, self._turn)
        if self._arrivals:
            timeline.at(self._arrivals[0].at_s, self._arrive)
        timeline.run(until_s)
        self.tally.close(until_s)
        timeline.run(until_s + settle_s)

    def view(self) -> View:
        """What a real autoscaler would see now."""
        now_s, setup = self.timeline.now_s, self.setup
        known = bisect_right(self._at_s, now_s)
        first = bisect_right(self._at_s, now_s - KNOWN_S)
        roles = {
            role: RoleView(
                pods.replicas, 1, setup.most, pods.seen_workers(), pods.seen_pods(), pods.gpus_each
            )
            for role, pods in self.pods.items()
        }
        begins_s, ends_s = setup.blind_s
        return View(
            now_s,
            roles,
            tuple(self._arrivals[first:known]),
            self._gateway.waiting,
            setup.promise,
            start_s=setup.start_s,
            max_gpus=setup.max_gpus,
            trouble="nothing can be seen" if begins_s <= now_s < ends_s else "",
        )

    @property
    def num_in_cell(self) -> int:
        """Requests that came and have not ended."""
        return len(self.requests) - self.num_ended

    def _arrive(self) -> None:
        index = len(self.requests)
        arrival = self._arrivals[index]
        kind = self.setup.kinds[self.setup.computes]
        num_left = max(1, arrival.num_prompt_tokens - arrival.num_cached_tokens)
        request = Request(arrival, kind.alone_s(arrival), num_left)
        self.requests.append(request)
        if index + 1 < len(self._arrivals):
            self.timeline.at(self._arrivals[index + 1].at_s, self._arrive)
        self._gateway.arrive(request)

    def _computed(self, request: Request) -> None:
        if "decode" in self.pods:
            self._gateway.hand_over(request)
        else:
            self._ended(request)
        self._reap("prefill")

    def _ended(self, request: Request) -> None:
        self.num_ended += 1
        if "decode" in self.pods:
            self._reap("decode")

    def _reap(self, role: Role) -> None:
        if self.pods[role].num_ending:
            self.pods[role].reap()

    def _turn(self) -> None:
        view = self.view()
        decision = self._policy.decide(Seen(view, self._busy(), self._used()))
        for role, of_role in decision.roles.items():
            self.pods[role].drain(of_role.drain)
            if of_role.replicas != self.pods[role].replicas:
                self._order(role, of_role.replicas)

    def _order(self, role: Role, replicas: int) -> None:
        self.pods[role].order(replicas)
        self.tally.order(self.timeline.now_s, role, replicas)

    def _busy(self) -> dict[Role, float]:
        """Share of the time since the last look that the ready workers computed prompts."""
        shares: list[float] = []
        now: dict[Worker, float] = {}
        for worker in self.pods[self.setup.computes].workers:
            assert isinstance(worker, PrefillWorker | MixedWorker)
            now[worker] = worker.busy_s
            shares.append((worker.busy_s - self._busy_s.get(worker, 0.0)) / self._policy.every_s)
        self._busy_s = now
        return {self.setup.computes: min(1.0, sum(shares) / len(shares)) if shares else 0.0}

    def _used(self) -> float:
        """KV blocks that decode workers use, in pools of one."""
        workers = self.pods["decode"].started if "decode" in self.pods else []
        return sum(item.used for item in workers if isinstance(item, DecodeWorker | MixedWorker))

    def _make_pods(self, role: Role) -> Pods:
        def make(name: str) -> Worker:
            kind, gateway = self.setup.kinds[role], self._gateway
            if "prefill" not in self.setup.first:
                return MixedWorker(name, kind, self.timeline, self._ended, gateway.place_waiting)
            if role == "decode":
                return DecodeWorker(name, kind, self.timeline, self._ended)
            return PrefillWorker(name, kind, self.timeline, self._computed, gateway.place_waiting)

        return Pods(role, self.timeline, self._gpus, make, self._changed)

    def _changed(self) -> None:
        """Pods came, went or drain: whoever is Pending is placed, and the gateway is told."""
        if self._is_changing:
            return
        self._is_changing = True
        for pods in self.pods.values():
            pods.reap()
            pods.place()
        self._is_changing = False
        self.tally.placed(
            self.timeline.now_s, {role: pods.num_placed for role, pods in self.pods.items()}
        )
        if "prefill" not in self.pods:
            mixed = self.pods["decode"].workers
            self._gateway.serve_with_mixed([w for w in mixed if isinstance(w, MixedWorker)])
            return
        prefill, decode = self.pods["prefill"].workers, None
        if "decode" in self.pods:
            decode = [w for w in self.pods["decode"].workers if isinstance(w, DecodeWorker)]
        self._gateway.serve_with([w for w in prefill if isinstance(w, PrefillWorker)], decode)


def with_budget(setup: Setup, num_gpus: int) -> Setup:
    """The cluster has no more, and the policy knows it."""
    return replace(setup, num_gpus=num_gpus, max_gpus=num_gpus)
