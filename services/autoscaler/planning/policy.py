"""How many workers each role is to have, from what is seen and what is remembered.

    trouble ------------------------> nothing is touched, and whoever drains serves again
    need > have --------------------> a drain ends; only then a worker is ordered, at once
    need < have, HOLD_S after that -> one worker of one role drains, if one fewer is safe and users
                                      had what the replay says
    it is empty, its pod not ready -> one fewer is ordered: the cluster takes that pod first
    load comes back meanwhile ------> the drain ends, and a warm worker serves again

Pure: no I/O, no clock, no log. The same view and memory give the same decision.
"""

from dataclasses import dataclass, replace

from services.autoscaler.planning.budget import within_budget
from services.autoscaler.planning.demand import Demand, demands
from services.autoscaler.planning.need import is_safe
from services.autoscaler.planning.pool import Pool
from services.autoscaler.view import (
    ROLES,
    Decision,
    Memory,
    Role,
    RoleDecision,
    RoleMemory,
    View,
)

HOLD_S = 1150.0
"""after more were needed, in which none goes: a worker that has to come back costs its start,
minutes of a GPU, and users wait meanwhile. Load that swings within 20 minutes keeps most of them"""
NOTHING_REMEMBERED = RoleMemory()


@dataclass(frozen=True)
class _Step:
    """What becomes of one role."""

    decision: RoleDecision
    memory: RoleMemory
    holds: str = ""


def decide(view: View, memory: Memory) -> tuple[Decision, Memory]:
    """What to do now, and what to remember if it is done."""
    if view.trouble:
        return _hold(view, memory)
    pools: dict[Role, Pool] = {
        role: Pool.of(view, memory.roles.get(role, NOTHING_REMEMBERED), role)
        for role in ROLES
        if role in view.roles
    }
    wanted = within_budget(view, pools, demands(view, pools))
    spare_gpus = _spare_gpus(view)
    may_drain = not any(pool.victim for pool in pools.values())
    steps: dict[Role, _Step] = {}
    for role, pool in pools.items():
        step = _step(view, pool, wanted[role], spare_gpus, may_drain)
        added = max(0, step.decision.replicas - pool.view.replicas)
        spare_gpus -= added * pool.view.num_gpus
        may_drain &= not step.decision.drain
        steps[role] = step
    decision = Decision(
        {role: step.decision for role, step in steps.items()},
        "; ".join(step.holds for step in steps.values() if step.holds),
    )
    return decision, Memory({role: step.memory for role, step in steps.items()})


def _hold(view: View, memory: Memory) -> tuple[Decision, Memory]:
    """Nothing is ordered and nobody drains: the capacity that is there is the safe one. What is
    remembered of needs and places stays, what was about to go does not."""
    roles = {
        role: RoleDecision(pool.replicas, reason="nothing is changed while there is trouble")
        for role, pool in view.roles.items()
    }
    kept = {
        role: RoleMemory(need=item.need, placeable=item.placeable, no_place_s=item.no_place_s)
        for role, item in memory.roles.items()
    }
    return Decision(roles, view.trouble), Memory(kept)


def _step(view: View, pool: Pool, demand: Demand, spare_gpus: int, may_drain: bool) -> _Step:
    grew_s = view.now_s if pool.memory.grew_s is None else pool.memory.grew_s
    remembered = replace(pool.memory, need=demand.replayed, grew_s=grew_s)
    if not pool.victim:
        remembered = replace(remembered, victim="", is_going=False)
    if pool.num_lost:
        remembered = replace(remembered, placeable=pool.replicas, no_place_s=view.now_s)
    if demand.num_workers >= pool.replicas:
        step = _grow(pool, demand, remembered, spare_gpus)
    else:
        step = _shrink(view, pool, demand, remembered, may_drain)
    if pool.cap < pool.view.most and demand.num_workers >= pool.cap:
        full = f"the cluster has no place for more than {pool.cap} {pool.role} workers"
        return replace(step, holds="; ".join(filter(None, (full, step.holds))))
    return step


def _grow(pool: Pool, demand: Demand, remembered: RoleMemory, spare_gpus: int) -> _Step:
    """As many as are needed, or as many as there are GPUs for. A drain ends, unless the order is
    smaller already: then that pod goes, whatever it does."""
    calls_back = remembered.victim and not remembered.is_going
    if calls_back or demand.num_workers > pool.replicas:
        remembered = replace(remembered, grew_s=pool.now_s)
    drain: tuple[str, ...] = ()
    if remembered.is_going:
        drain = (remembered.victim,)
    else:
        remembered = replace(remembered, victim="")
    num_more = demand.num_workers - pool.replicas
    if pool.view.num_gpus:
        num_more = min(num_more, max(0, spare_gpus // pool.view.num_gpus))
    replicas = pool.replicas + num_more
    holds = ""
    if replicas < demand.num_workers:
        holds = f"the GPUs for {demand.num_workers} {pool.role} workers are not free yet"
    elif demand.replay is None:
        holds = demand.reason
    elif not num_more and pool.is_starting:
        holds = f"a {pool.role} worker starts"
    return _Step(RoleDecision(replicas, drain, demand.reason), remembered, holds)


def _shrink(
    view: View, pool: Pool, demand: Demand, remembered: RoleMemory, may_drain: bool
) -> _Step:
    """One worker goes: first it drains, then one fewer is ordered, then its pod is gone."""
    if victim := pool.victim:
        is_empty = pool.is_empty(victim) and not remembered.is_going
        replicas = pool.replicas - is_empty
        remembered = replace(remembered, is_going=remembered.is_going or is_empty)
        decision = RoleDecision(replicas, (victim.incarnation,), demand.reason)
        return _Step(decision, remembered)
    if pool.is_starting:
        holds = f"a {pool.role} worker starts"
        return _Step(RoleDecision(pool.replicas, reason=demand.reason), remembered, holds)
    why_not = _why_not(view, pool, demand, remembered, may_drain)
    victim = None if why_not else pool.choose_victim()
    if victim is None:
        reason = "; ".join(filter(None, (demand.reason, why_not)))
        return _Step(RoleDecision(pool.replicas, reason=reason), remembered)
    decision = RoleDecision(pool.replicas, (victim.incarnation,), demand.reason)
    return _Step(decision, replace(remembered, victim=victim.incarnation))


def _why_not(
    view: View, pool: Pool, demand: Demand, remembered: RoleMemory, may_drain: bool
) -> str:
    """Why no worker drains although fewer would do; empty: one may. What is over a limit goes
    without being asked whether that is safe."""
    assert remembered.grew_s is not None
    left_s = remembered.grew_s + HOLD_S - view.now_s
    if left_s > 0:
        return f"fewer would do, and one may go in {left_s:.0f} s"
    if not may_drain:
        return "another worker drains"
    if demand.doubt:
        return f"fewer would do, but {demand.doubt}"
    if view.judged and demand.replay and pool.replicas <= demand.cap:
        fewer = pool.replicas - 1
        if not is_safe(demand.replay, fewer, view.promise.target):
            return f"{fewer} would do, but with nothing in hand"
    return ""


def _spare_gpus(view: View) -> int:
    """That no order takes. Without a budget there are enough for the most of each role."""
    pools = view.roles.values()
    limit = view.max_gpus
    if limit is None:
        limit = sum(max(pool.most, pool.least, pool.replicas) * pool.num_gpus for pool in pools)
    return limit - sum(pool.replicas * pool.num_gpus for pool in pools)
