"""Worker registry in memory: the twin that tests and one process use."""

from shared.clock import Clock
from shared.state.keys import WORKER_TTL_S
from shared.state.registry import WorkerEntry, decode_entries, encode_entry


class MemoryWorkerRegistry:
    """`WorkerRegistry` in one process; entries go stale by the given clock."""

    def __init__(self, clock: Clock, ttl_s: float = WORKER_TTL_S) -> None:
        self._clock = clock
        self._ttl_s = ttl_s
        self._pools: dict[str, dict[str, tuple[bytes, float]]] = {}
        self._drains_until_s: dict[tuple[str, str], float] = {}

    async def register(self, entry: WorkerEntry) -> bool:
        now_s, inc = self._clock.monotonic_s(), entry.incarnation
        self._pools.setdefault(entry.pool, {})[inc] = (encode_entry(entry), now_s + self._ttl_s)
        return self._drains_until_s.get((entry.pool, inc), now_s) > now_s

    async def drain(self, pool: str, incarnation: str, for_s: float) -> None:
        self._drains_until_s[pool, incarnation] = self._clock.monotonic_s() + for_s

    async def remove(self, pool: str, incarnation: str) -> None:
        self._pools.get(pool, {}).pop(incarnation, None)

    async def list(self, pool: str) -> tuple[WorkerEntry, ...]:
        now_s = self._clock.monotonic_s()
        entries = self._pools.pop(pool, {})
        fresh = {inc: entry for inc, entry in entries.items() if entry[1] > now_s}
        if fresh:
            self._pools[pool] = fresh
        return decode_entries((body for body, _ in fresh.values()), pool)

    async def pools(self) -> frozenset[str]:
        return frozenset(self._pools)
