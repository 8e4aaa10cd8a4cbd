"""Which workers to have when the GPUs do not suffice for all that are needed.

Pure. Of all pairs that use the budget up, the one whose joint share is best: a request is in time
if both its prompt and its answer are, so the shares of the two roles are multiplied. The search
begins at the needs in proportion and climbs from pair to pair.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

from services.autoscaler.planning.demand import Demand
from services.autoscaler.planning.need import Replay
from services.autoscaler.planning.pool import Pool
from services.autoscaler.view import Role, View

PAIR_REQUESTS = 2000
"""the latest, by which pairs are judged: several pairs are replayed, and which is better shows with
fewer requests than how good one is"""


def within_budget(
    view: View, pools: Mapping[Role, Pool], demands: Mapping[Role, Demand]
) -> dict[Role, Demand]:
    """The same if they fit, else what the budget is best used for. The least stays."""
    gpus = {role: pool.view.num_gpus for role, pool in pools.items()}
    most = view.max_gpus
    if most is None or sum(gpus[role] * demands[role].num_workers for role in gpus) <= most:
        return dict(demands)
    prefill, decode = demands.get("prefill"), demands.get("decode")
    if prefill and decode and prefill.replay and decode.replay and all(gpus.values()):
        pairs = Pairs(
            wanted=(prefill.num_workers, decode.num_workers),
            least=(prefill.least, decode.least),
            gpus=(gpus["prefill"], gpus["decode"]),
            max_gpus=most,
        )
        num_prefill, share = pairs.best(prefill.replay, decode.replay)
        num_decode = pairs.num_decode(num_prefill)
        reason = (
            f"the need is {prefill.num_workers} prefill and {decode.num_workers} decode workers, "
            f"{most} GPUs are best used for {num_prefill} and {num_decode}, with which "
            f"{100 * share:.1f} % of the latest requests would have been in time"
        )
        return {
            "prefill": _squeezed(prefill, num_prefill, reason),
            "decode": _squeezed(decode, num_decode, reason),
        }
    return _cut(demands, gpus, most)


@dataclass(frozen=True)
class Pairs:
    """The pairs of a number of prefill and one of decode workers that use the budget up. Each field
    but the last is of (prefill, decode), and every worker takes at least one GPU."""

    wanted: tuple[int, int]
    least: tuple[int, int]
    gpus: tuple[int, int]
    max_gpus: int

    def num_decode(self, num_prefill: int) -> int:
        """That fit into what `num_prefill` prefill workers leave."""
        left = (self.max_gpus - num_prefill * self.gpus[0]) // self.gpus[1]
        return max(self.least[1], min(self.wanted[1], left))

    def best(self, prefill: Replay, decode: Replay) -> tuple[int, float]:
        """Its number of prefill workers, and its joint share."""
        prefill, decode = prefill.latest(PAIR_REQUESTS), decode.latest(PAIR_REQUESTS)

        @cache
        def share(num_prefill: int) -> float:
            num_decode = self.num_decode(num_prefill)
            return _share(prefill, num_prefill) * _share(decode, num_decode)

        fewest = self.least[0]
        most = (self.max_gpus - self.least[1] * self.gpus[1]) // self.gpus[0]
        most = max(fewest, min(self.wanted[0], most))
        needed = sum(map(int.__mul__, self.wanted, self.gpus))
        best = min(max(fewest, round(self.wanted[0] * self.max_gpus / needed)), most)
        for step in (1, -1):
            while fewest <= best + step <= most and share(best + step) > share(best):
                best += step
        return best, share(best)


def _share(replay: Replay, num_workers: int) -> float:
    return replay.share(num_workers) if num_workers else 0.0


def _squeezed(demand: Demand, num_workers: int, reason: str) -> Demand:
    """The budget's number; one below it is not asked whether it is safe, as nothing is."""
    return replace(demand, num_workers=num_workers, cap=num_workers, reason=reason)


def _cut(
    demands: Mapping[Role, Demand], gpus: Mapping[Role, int], max_gpus: int
) -> dict[Role, Demand]:
    """Where no pair can be judged: what is over goes first from decode, then from prefill."""
    cut = dict(demands)
    for role in reversed(list(demands)):
        over = sum(gpus[item] * cut[item].num_workers for item in cut) - max_gpus
        if over > 0 and gpus[role]:
            fitting = max(cut[role].least, cut[role].num_workers - -(-over // gpus[role]))
            reason = f"{cut[role].reason}; {max_gpus} GPUs hold {fitting}"
            cut[role] = _squeezed(cut[role], fitting, reason)
    return cut
