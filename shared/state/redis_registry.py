"""Worker registry in Redis: a hash of entries per pool and a sorted set of their expiries."""

from shared.state.keys import WORKER_KEYS_TTL_S, WORKER_TTL_S, Keys
from shared.state.redis_client import Argument, RedisClient, Script
from shared.state.registry import WorkerEntry, decode_entries, encode_entry
from shared.state.reply import as_bytes, as_int, as_list, as_text

REGISTER = Script.beside(__file__, "register")
REMOVE = Script.beside(__file__, "remove_worker")
LIST = Script.beside(__file__, "list_workers")
DRAIN = Script.beside(__file__, "drain_worker")


class RedisWorkerRegistry:
    """`WorkerRegistry` on a Redis server."""

    def __init__(self, client: RedisClient, keys: Keys, ttl_s: float = WORKER_TTL_S) -> None:
        self._client = client
        self._keys = keys
        self._ttl_ms = round(ttl_s * 1000)

    async def register(self, entry: WorkerEntry) -> bool:
        arguments: list[Argument] = [
            entry.incarnation,
            encode_entry(entry),
            entry.pool,
            self._ttl_ms,
            WORKER_KEYS_TTL_S,
        ]
        keys = (*self._keys_of(entry.pool), self._keys.drains(entry.pool))
        return as_int(await self._client.run(REGISTER, keys, arguments)) == 1

    async def drain(self, pool: str, incarnation: str, for_s: float) -> None:
        arguments: list[Argument] = [incarnation, round(for_s * 1000), WORKER_KEYS_TTL_S]
        await self._client.run(DRAIN, [self._keys.drains(pool)], arguments)

    async def remove(self, pool: str, incarnation: str) -> None:
        await self._client.run(REMOVE, self._keys.workers(pool), [incarnation])

    async def list(self, pool: str) -> tuple[WorkerEntry, ...]:
        bodies = as_list(await self._client.run(LIST, self._keys_of(pool), [pool]))
        return decode_entries((as_bytes(body) for body in bodies), pool)

    async def pools(self) -> frozenset[str]:
        names = as_list(await self._client.command("SMEMBERS", self._keys.pools))
        return frozenset(as_text(name) for name in names)

    def _keys_of(self, pool: str) -> tuple[str, str, str]:
        return (*self._keys.workers(pool), self._keys.pools)
