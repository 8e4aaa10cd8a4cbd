"""A planner in the way of Dynamo's: a forecast sets the floor, queues add to it.

Made from its documentation ("Planner Design" and "Planner Guide", version 1.2), not from its code.
Throughput mode, each 180 s: the requests of the last interval are forecast for the next (predictor
`constant`), times the mean prompt, divided by what a worker computes in a second; decode by output
tokens and the rate of a worker at the gap that is promised. Load mode, each 5 s: one more where all
workers' estimated time to first token is over the promise; one fewer where the estimate, with the
queues of one fewer, stays under `load_scaling_down_sensitivity` (80 %) of it. The estimate is exact
here: tokens queued at the worker x seconds per token. Its queue is that of the workers: what waits
before them is not seen, as documented. With both, the throughput mode's number is the least.
"""

from math import ceil

from services.autoscaler.view import Decision, Role, RoleDecision, RoleView, View
from services.simulator.policies.policy import Seen
from services.simulator.worker_kind import WorkerKind

FORECAST_S = 180.0
SENSITIVITY = 0.8


class PlannerPolicy:
    """`by_load`: both modes; else throughput alone."""

    every_s = 5.0

    def __init__(self, prefill: WorkerKind, decode: WorkerKind, *, by_load: bool) -> None:
        self._prefill = prefill
        self._decode = decode
        self._by_load = by_load
        self._floors: dict[Role, int] = {}
        self._forecast_s = -FORECAST_S

    def decide(self, seen: Seen) -> Decision:
        view = seen.view
        if not view.trouble and view.now_s - self._forecast_s >= FORECAST_S:
            self._forecast_s = view.now_s
            self._floors = {role: self._floor(role, view) for role in view.roles}
        roles = {role: RoleDecision(self._wish(role, view, seen)) for role in view.roles}
        return Decision(roles)

    def _floor(self, role: Role, view: View) -> int:
        since_s = view.now_s - FORECAST_S
        recent = [arrival for arrival in view.arrivals if arrival.at_s > since_s]
        if role == "prefill":
            tokens = sum(arrival.num_prompt_tokens for arrival in recent)
            return ceil(tokens * self._prefill.token_s / FORECAST_S)
        if not recent:
            return 1
        output = sum(arrival.num_output_tokens for arrival in recent)
        prompt = sum(arrival.num_prompt_tokens for arrival in recent)
        context = (prompt + output / 2) / len(recent)
        return ceil(output / FORECAST_S / self._tokens_s(view.promise.gap_s, context))

    def _tokens_s(self, gap_s: float, context: float) -> float:
        """Of a decode worker whose batch is as large as its gap and its blocks allow."""
        costs = self._decode.costs
        row_s = costs.row_s + context * costs.context_token_s
        fits = self._decode.num_blocks * self._decode.block_size / context
        batch = max(1.0, min(fits, (gap_s - costs.step_s) / row_s))
        return batch / (costs.step_s + batch * row_s)

    def _wish(self, role: Role, view: View, seen: Seen) -> int:
        pool = view.roles[role]
        if view.trouble:
            return pool.replicas
        wish = max(self._floors.get(role, 1), 1)
        if self._by_load:
            wish = max(wish, self._by_queues(role, view, seen))
        return min(max(wish, pool.least), pool.most)

    def _by_queues(self, role: Role, view: View, seen: Seen) -> int:
        """One more, one fewer or the same, once all that was ordered is there."""
        pool = view.roles[role]
        ready = [worker for worker in pool.workers if not worker.is_draining]
        if len(ready) != pool.replicas or not ready:
            return pool.replicas
        if role == "prefill":
            loads = [self._prefill.token_s * worker.num_queued_tokens for worker in ready]
            limit = view.promise.wait_s
        else:
            loads, limit = [seen.used / len(ready)], 1.0
        return _one_step(pool, min(loads), max(loads), limit)


def _one_step(pool: RoleView, least: float, most: float, limit: float) -> int:
    number = pool.replicas
    if least > limit:
        return number + 1
    if number > 1 and most * number / (number - 1) < SENSITIVITY * limit:
        return number - 1
    return number
