"""One turn: look at the cell and the cluster, decide, act, and keep what was decided for the page.

    Redis, API ->  View  -> decide -> drains (renewed each turn of their own loop) -> orders

A turn that cannot look decides to hold, with the reason. Nothing is written unless this process
leads: that is asked again before each write. A drain ends when it is not renewed, so an autoscaler
that dies takes nothing away.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from services.autoscaler.cell import Cell, CellView
from services.autoscaler.disagreement import Disagreement
from services.autoscaler.drains import Drains
from services.autoscaler.kube.cluster import (
    Cluster,
    ClusterUnavailableError,
    Scale,
    ScaleConflictError,
)
from services.autoscaler.planning.policy import decide
from services.autoscaler.start_times import StartTimes
from services.autoscaler.view import Decision, Memory, Role, RoleView, View
from shared.clock import Clock
from shared.errors import StateUnavailableError

logger = logging.getLogger(__name__)

STRAY_PREFILL = "prefill workers are registered: name their Deployment too, by --prefill"
"""where decode workers alone are to be scaled: how many are needed is another question then"""


@dataclass(frozen=True)
class Told:
    """What the last turn saw and decided."""

    view: View
    decision: Decision
    acts: bool
    """whether this process may act; else another leads, or it only advises"""

    @property
    def wanted(self) -> dict[Role, int]:
        """Replicas by role. Where another scaler acts on it, nobody drains first: a worker that is
        to go is not wanted any more."""
        return {
            role: of_role.replicas - (0 if self.acts else len(of_role.drain))
            for role, of_role in self.decision.roles.items()
        }


class Autoscaler:
    """`turn` and `renew_drains` are called again and again, by two loops."""

    def __init__(
        self,
        cell: Cell,
        drains: Drains,
        cluster: Cluster | None,
        template: View,
        clock: Clock,
        leads: Callable[[], bool],
    ) -> None:
        """`cluster`: None: replicas are the workers that are registered, and none are ordered.
        `template`: the roles with their limits, promise and budget. `leads`: whether this
        process may write, now."""
        self._cell = cell
        self._drains = drains
        self._cluster = cluster
        self._template = template
        self._clock = clock
        self._leads = leads
        self._memory = Memory()
        self._starts = StartTimes()
        self._disagreement = Disagreement()
        self._prefill_seen = False
        """a prefill worker was registered once"""
        self._scales: dict[Role, Scale] = {}
        self.told: Told | None = None
        """None before anything was seen"""
        self.unseen_because = ""
        """the latest failure to look"""
        self.counters: dict[str, int] = {}

    async def turn(self) -> None:
        """Look, decide, act. A failure of Redis or of the cluster is a reason to hold; before
        anything was seen there is nothing that could be held."""
        try:
            view = await self._look()
        except (StateUnavailableError, ClusterUnavailableError) as error:
            before, self.unseen_because = self.unseen_because, str(error)
            if self.told is None:
                if before != self.unseen_because:
                    logger.warning("nothing is seen yet: %s", error)
                return
            view = self._blind(self.told.view)
        decision, memory = await asyncio.to_thread(decide, view, self._memory)
        before = "" if self.told is None else self.told.decision.holds
        if decision.holds != before:
            logger.info("holds: %s", decision.holds or "no longer")
        self.told = Told(view, decision, self._leads())
        self._count("decisions")
        if not self._leads() or await self._act(view, decision):
            self._memory = memory  # what was not done is decided again

    async def renew_drains(self) -> None:
        """Ask again those that are to drain."""
        if self._leads():
            await self._drains.renew()

    async def _look(self) -> View:
        cell = await self._cell.look()
        roles = await self._with_pods(self._with_workers(cell))
        now_s = self._clock.monotonic_s()
        trouble = self._disagreement.see(roles, now_s, leads=self._leads())
        if self._template.is_aggregated and cell.workers["prefill"]:
            trouble = STRAY_PREFILL
        return replace(
            self._template,
            now_s=now_s,
            roles=roles,
            arrivals=cell.arrivals,
            waiting=cell.waiting,
            start_s=self._note_starts(roles, cell),
            trouble=trouble,
        )

    def _with_workers(self, cell: CellView) -> dict[Role, RoleView]:
        """Where no deployment says which roles there are, the workers do: a cell that has decode
        workers and never had a prefill worker is taken for one of topology agg, as by gateways."""
        self._prefill_seen |= bool(cell.workers["prefill"])
        roles = dict(self._template.roles)
        if self._cluster is None and cell.workers["decode"] and not self._prefill_seen:
            del roles["prefill"]
        return {role: replace(view, workers=cell.workers[role]) for role, view in roles.items()}

    async def _with_pods(self, roles: Mapping[Role, RoleView]) -> dict[Role, RoleView]:
        found: dict[Role, RoleView] = {}
        for role, view in roles.items():
            if self._cluster is None:
                found[role] = replace(view, replicas=len(view.workers))
                continue
            scale = await asyncio.to_thread(self._cluster.scale, role)
            pods = await asyncio.to_thread(self._cluster.pods, role)
            self._scales[role] = scale
            found[role] = replace(view, replicas=scale.replicas, pods=pods)
        return found

    def _note_starts(self, roles: Mapping[Role, RoleView], cell: CellView) -> float:
        pods = {pod.name: pod.age_s for view in roles.values() for pod in view.pods}
        workers = {worker.name for group in cell.workers.values() for worker in group}
        self._starts.see(pods, workers)
        return self._starts.seconds

    def _blind(self, last: View) -> View:
        """What was seen last, and that nothing may be done now."""
        return replace(last, now_s=self._clock.monotonic_s(), trouble=self.unseen_because)

    async def _act(self, view: View, decision: Decision) -> bool:
        """Whether all of it was done."""
        try:
            for incarnation in await self._drains.ask(
                self._cell.pool,
                {inc for role in decision.roles.values() for inc in role.drain},
                [worker for role in view.roles.values() for worker in role.workers],
            ):
                self._count("drains")
                logger.info("%s drains: %s", incarnation, _reason(decision, incarnation))
        except StateUnavailableError as error:
            logger.warning("drains are not told: %s", error)
            return False
        done = True
        for role, of_role in decision.roles.items():
            if of_role.replicas != view.roles[role].replicas:
                logger.info("%s: %s", role, of_role.reason)
                done &= await self._order(role, view.roles[role].replicas, of_role.replicas)
        return done

    async def _order(self, role: Role, before: int, replicas: int) -> bool:
        try:
            if not await asyncio.to_thread(self._order_if_leading, role, replicas):
                return False
        except (ScaleConflictError, ClusterUnavailableError) as error:
            self._count("refused_orders")
            logger.warning("%d %s workers were not ordered: %s", replicas, role, error)
            return False
        self._disagreement.ordered(role, replicas)
        self._count(f"orders:{role}:{'up' if replicas > before else 'down'}")
        logger.info("ordered %d %s workers, %d before", replicas, role, before)
        return True

    def _order_if_leading(self, role: Role, replicas: int) -> bool:
        """In a thread: a process that was stopped meanwhile finds that it leads no more."""
        if self._cluster is None or not self._leads():
            return False
        self._cluster.order(role, replicas, self._scales[role].version)
        return True

    def _count(self, name: str) -> None:
        self.counters[name] = self.counters.get(name, 0) + 1


def _reason(decision: Decision, incarnation: str) -> str:
    return next(role.reason for role in decision.roles.values() if incarnation in role.drain)
