"""When a request that engines have died under may go to a worker, which it may kill. Pure.

It waits for another ready worker of the role, so that it never takes the last; those that are
suspected all go to the same one. Where there has been only one for so long there will be no other,
and where there has been none for so long, decode workers alone stand in for prefill workers.
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
    """To be told many times a second."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen_s: dict[tuple[str, int], float] = {}
        """when a role last had that number of ready workers: one, or two and more"""

    def note(self, workers: Sequence[WorkerView]) -> None:
        """What there is now."""
        now_s = self._clock.monotonic_s()
        roles = [worker.role for worker in workers if worker.ready]
        for role in set(roles):
            for num in range(1, min(roles.count(role), 2) + 1):
                self._seen_s[role, num] = now_s

    def spares_a_worker(self, crashes: Crashes, placement: Placement | None) -> bool:
        """One that takes prompts may die of this."""
        if not crashes.any:
            return True
        if placement is None:
            return False
        if placement.reason == "no_prefill_worker":
            return self._is_open(crashes, "prefill", 0, wanted=1)
        role = "prefill" if placement.mode == "prefill" else "decode"
        return self._is_open(crashes, role, len(placement.workers))

    def spares_a_reader(self, crashes: Crashes, workers: Sequence[WorkerView], source: str) -> bool:
        """A decode worker may die of this when it has pulled it from `source`."""
        if not crashes.any:
            return True
        ready = [worker for worker in workers if worker.ready and worker.role == "decode"]
        num_ready = sum(worker.incarnation != source for worker in ready)
        return self._is_open(crashes, "decode", num_ready)

    def _is_open(self, crashes: Crashes, role: str, num_ready: int, *, wanted: int = 2) -> bool:
        if num_ready >= wanted:
            return True
        patience_s = ALONE_PATIENCE_S if crashes.suspected else SHARED_PATIENCE_S
        seen_s = self._seen_s.get((role, wanted))
        return seen_s is None or self._clock.monotonic_s() - seen_s >= patience_s
