"""What Redis says of one pool: its workers, what came, and what waits.

One look is five round trips. Whatever cannot be read raises StateUnavailableError: half a picture
would be taken for a whole one.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from services.autoscaler.arrivals import Arrivals
from services.autoscaler.view import ROLES, Arrival, Role, WorkerView
from shared.clock import Clock
from shared.errors import StateUnavailableError
from shared.message_parts.step_costs import NO_COSTS
from shared.protocol import Load
from shared.queue.backlog import Waiting
from shared.queue.redis_backlog import RedisBacklog
from shared.state.registry import WorkerEntry, WorkerRegistry
from shared.state.traffic import Traffic

_UNKNOWN = Load(0, 0, 0, 0, 0, 0, 0, 0)
"""of a worker of a release that does not register its load"""


@dataclass(frozen=True)
class CellView:
    """One look at a pool."""

    workers: Mapping[Role, tuple[WorkerView, ...]]
    arrivals: tuple[Arrival, ...]
    """of the last KNOWN_S, oldest first"""
    waiting: Waiting


class Cell:
    """Looks at one pool again and again; remembers what came, and since when it knows whom."""

    def __init__(
        self,
        registry: WorkerRegistry,
        traffic: Traffic,
        backlog: RedisBacklog,
        clock: Clock,
        pool: str = "",
    ) -> None:
        """`backlog`: told which pool's it is. `pool`: its whole name, or the model's alone; empty:
        the only one that has workers."""
        self._registry = registry
        self._backlog = backlog
        self._clock = clock
        self._wanted = self.pool = pool
        self._arrivals = Arrivals(traffic, clock)
        self._first_seen_s: dict[str, float] = {}
        """by incarnation"""

    async def look(self) -> CellView:
        """As it is now. StateUnavailableError."""
        pool = self.pool = await self._only_pool()
        self._backlog.serve(pool)
        entries = await self._registry.list(pool)
        await self._arrivals.read(pool)
        waiting = await self._backlog.waiting()
        now_s = self._clock.monotonic_s()
        self._first_seen_s = {
            entry.incarnation: self._first_seen_s.get(entry.incarnation, now_s) for entry in entries
        }
        workers = {
            role: tuple(self._worker(entry, now_s) for entry in entries if entry.role == role)
            for role in ROLES
        }
        return CellView(workers, self._arrivals.seen(), waiting)

    async def _only_pool(self) -> str:
        """Of the model that is wanted, or of all."""
        pools, wanted = sorted(await self._registry.pools()), self._wanted
        meant = [pool for pool in pools if wanted in ("", pool.rpartition("@")[0], pool)]
        if len(meant) == 1:
            return meant[0]
        if not meant and "@" in self.pool:
            return self.pool  # all its workers are gone, which is a view too
        known = f"pools with workers: {', '.join(pools) or 'none'}"
        if not wanted:
            raise StateUnavailableError(f"{known}; name one with --pool")
        number = f"{len(meant)} pools" if meant else "no pool"
        raise StateUnavailableError(f"{number} of {wanted}; {known}")

    def _worker(self, entry: WorkerEntry, now_s: float) -> WorkerView:
        load = entry.load or _UNKNOWN
        return WorkerView(
            name=entry.worker_id,
            incarnation=entry.incarnation,
            age_s=now_s - self._first_seen_s[entry.incarnation],
            is_draining=load.state == "draining",
            num_attempts=entry.num_attempts,
            num_queued_tokens=load.queued_tokens,
            num_held_blocks=load.held,
            num_free_blocks=load.free + load.cached,
            num_blocks=load.total,
            num_unreserved_tokens=sum(load.unreserved_tokens.values()),
            costs=load.step_costs if load.step_costs.credible else NO_COSTS,
            step_tokens=entry.step_tokens or WorkerView.step_tokens,
            block_size=entry.block_size,
        )
