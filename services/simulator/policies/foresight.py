"""The product's rule on what is about to come: a bound that a policy without a crystal ball can be
held against.

Each turn replays the arrivals of the next start, and of the 120 s after it. What the second needs
is ordered now, so that it is there in time; what neither needs goes at once. No holding, no safety.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from services.autoscaler.planning.budget import within_budget
from services.autoscaler.planning.decode_replay import DecodeReplay
from services.autoscaler.planning.demand import Demand
from services.autoscaler.planning.mixed_replay import MixedReplay
from services.autoscaler.planning.need import Replay, smallest_need
from services.autoscaler.planning.pool import Pool
from services.autoscaler.planning.prefill_replay import PrefillReplay, computing_s
from services.autoscaler.planning.typical_worker import TypicalWorker
from services.autoscaler.view import (
    Arrival,
    Decision,
    Promise,
    Role,
    RoleDecision,
    RoleMemory,
    View,
)
from services.simulator.policies.policy import Seen

AHEAD_S = 120.0


class ForesightPolicy:
    """`arrivals`: all that will ever come, oldest first."""

    every_s = 15.0

    def __init__(self, arrivals: Sequence[Arrival]) -> None:
        self._arrivals = arrivals
        self._at_s = [arrival.at_s for arrival in arrivals]
        self._guesses: dict[Role, int] = {}

    def decide(self, seen: Seen) -> Decision:
        view = seen.view
        now_s, ready_s = view.now_s, view.now_s + view.start_s
        soon = self._needs(view, now_s, ready_s)
        later = self._needs(view, ready_s, ready_s + AHEAD_S)
        roles = {}
        for role, pool in view.roles.items():
            kept = min(pool.replicas, soon[role])
            roles[role] = RoleDecision(max(kept, later[role]))
        return Decision(self._fitting(view, roles, later))

    def _needs(self, view: View, since_s: float, until_s: float) -> dict[Role, int]:
        first, last = bisect_left(self._at_s, since_s), bisect_left(self._at_s, until_s)
        demands = self._demands(view, self._arrivals[first:last])
        return {role: demand.num_workers for role, demand in demands.items()}

    def _demands(self, view: View, arrivals: Sequence[Arrival]) -> dict[Role, Demand]:
        workers = {role: TypicalWorker.of(pool.workers) for role, pool in view.roles.items()}
        pools = {role: Pool.of(view, RoleMemory(), role) for role in view.roles}
        replays = _replays(view.promise, workers, arrivals)
        if len(replays) < len(pools):
            return {
                role: Demand(pool.replicas, pool.view.most, "", least=1)
                for role, pool in pools.items()
            }
        found = {role: self._demand(view, pools[role], replays[role]) for role in view.roles}
        return within_budget(view, pools, found)

    def _demand(self, view: View, pool: Pool, replay: Replay) -> Demand:
        guess = self._guesses.get(pool.role, pool.replicas)
        most = pool.view.most
        number = smallest_need(replay, view.promise.target, 1, most, guess).num_workers
        self._guesses[pool.role] = number
        return Demand(number, most, "", replay, number, 1)

    def _fitting(
        self, view: View, wanted: dict[Role, RoleDecision], later: dict[Role, int]
    ) -> dict[Role, RoleDecision]:
        """Within the budget: what is needed later comes first."""
        most = view.max_gpus
        if most is None or sum(role.replicas for role in wanted.values()) <= most:
            return wanted
        return {role: RoleDecision(number) for role, number in later.items()}


def _replays(
    promise: Promise,
    workers: Mapping[Role, TypicalWorker | None],
    arrivals: Sequence[Arrival],
) -> dict[Role, Replay]:
    """Of the roles whose workers are known; prompts are computed by the first."""
    computes, decode = workers.get("prefill", workers.get("decode")), workers.get("decode")
    if computes is None:
        return {}
    takes_s = computing_s(arrivals, computes)
    if "prefill" not in workers:
        return {"decode": MixedReplay.of(arrivals, takes_s, computes, promise)}
    replays: dict[Role, Replay] = {"prefill": PrefillReplay.of(arrivals, takes_s, promise.wait_s)}
    if decode is not None:
        replays["decode"] = DecodeReplay.of(arrivals, takes_s, decode, promise)
    return replays
