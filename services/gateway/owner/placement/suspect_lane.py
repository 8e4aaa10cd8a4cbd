"""When a request that engines have died under may go to a worker, which it may kill. Pure.

It waits for another ready worker of the role, so that it never takes the last; those that are
suspected all go to the same one. Where there was only one for so long there will be no other.
"""

from collections.abc import Sequence

from services.gateway.owner.links.worker_view import WorkerView
from services.gateway.owner.machine.crashes import Crashes
from services.gateway.owner.placement.router import Placement
from shared.clock import Clock

SHARED_PATIENCE_S = 10.0
"""after one death, for which one of many is to blame. A worker that died is back sooner"""
ALONE_PATIENCE_S = 30.0
"""after two. It is back sooner, also after the fifth death in a minute"""


class SuspectLane:
    """Hears of the workers that may be chosen, as often as some are."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._several_s: dict[str, float] = {}
        """when a role last had several"""

    def spares_a_worker(self, crashes: Crashes, placement: Placement | None) -> bool:
        """One that takes prompts may die of this. Where decode workers only stand in for prefill
        workers, there is none."""
        if placement is None:
            return not crashes.any
        stands_in = placement.reason == "no_prefill_worker"
        role = "prefill" if stands_in or placement.mode == "prefill" else "decode"
        return self._is_open(crashes, role, 0 if stands_in else len(placement.workers))

    def spares_a_reader(self, crashes: Crashes, workers: Sequence[WorkerView], source: str) -> bool:
        """A decode worker may die of this when it has pulled it from `source`."""
        ready = [worker for worker in workers if worker.ready and worker.role == "decode"]
        num_ready = sum(worker.incarnation != source for worker in ready)
        return self._is_open(crashes, "decode", num_ready)

    def _is_open(self, crashes: Crashes, role: str, num_ready: int) -> bool:
        now_s = self._clock.monotonic_s()
        if num_ready > 1:
            self._several_s[role] = now_s
        patience_s = ALONE_PATIENCE_S if crashes.suspected else SHARED_PATIENCE_S
        alone_s = now_s - self._several_s.get(role, -patience_s)
        return not crashes.any or num_ready > 1 or alone_s >= patience_s
