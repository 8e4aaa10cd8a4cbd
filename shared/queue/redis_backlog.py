"""The backlog in Redis: a sorted set for the order, and three more keys."""

from collections.abc import Collection

import msgpack

from shared.protocol import DEFAULT_PRIORITY
from shared.queue.backlog import (
    ANY_ROOM,
    MAX_PASSES,
    MAX_PRIORITY,
    MOST_PASSED,
    WINDOW,
    BacklogEntry,
    Placement,
    PutStatus,
    Waiting,
)
from shared.queue.room import Room
from shared.state.keys import LIVE_TTL_S, Keys
from shared.state.kv_events import join_hashes, split_hashes
from shared.state.redis_client import Argument, RedisClient, Script
from shared.state.reply import as_bytes, as_int, as_list, as_text, narrowing

MOST_TOKENS = 2**50
"""no prompt has more"""
PUT = Script.beside(__file__, "put_backlog")
POP = Script.beside(__file__, "pop_backlog")
CANCEL = Script.beside(__file__, "cancel_backlog")
DROP_ORPHANS = Script.beside(__file__, "drop_orphans")


class RedisBacklog:
    """`Backlog` on a Redis server."""

    def __init__(self, client: RedisClient, keys: Keys, pool: str, max_length: int) -> None:
        self._client = client
        self._all_keys = keys
        self._keys = keys.backlog(pool)
        self._beats = keys.beats
        self._max_length = max_length

    def serve(self, pool: str) -> None:
        """From now on that pool's backlog."""
        self._keys = self._all_keys.backlog(pool)

    async def put(
        self, entry: BacklogEntry, max_tokens_ahead: int | None = None, start: int | None = None
    ) -> Placement:
        arguments: list[Argument] = [
            *(entry.rid, entry.gateway_incarnation, entry.tenant, entry.priority, entry.num_tokens),
            join_hashes(entry.heads),
            self._max_length,
            -1 if max_tokens_ahead is None else max_tokens_ahead,
            LIVE_TTL_S,
            entry.charge,
            -1 if start is None else start,
        ]
        reply = await self._client.run(PUT, (*self._keys, self._beats), arguments)
        with narrowing():
            status, *numbers = as_list(reply)
            num_ahead, tokens_ahead, tag = map(as_int, numbers)
            return Placement(PutStatus(as_text(status)), num_ahead, tokens_ahead, tag)

    async def pop(self, held: Collection[bytes] = (), room: Room = ANY_ROOM) -> BacklogEntry | None:
        last_class = DEFAULT_PRIORITY if room.takes_long() else -1
        if room.takes_long(early=False):
            last_class = MAX_PRIORITY
        arguments: list[Argument] = [
            *(join_hashes(tuple(held)), WINDOW, MAX_PASSES),
            *(int(min(room.long_tokens, MOST_TOKENS)), last_class),
            *(int(room.tokens > 0), MOST_PASSED),
        ]
        answer = await self._client.run(POP, self._keys, arguments)
        if answer is None:
            return None
        with narrowing():
            rid, packed = as_list(answer)
            entry = as_list(msgpack.unpackb(as_bytes(packed), raw=True))
            _, g_inc, tenant, priority, num_tokens, heads, *_ = entry  # a newer release says more
            return BacklogEntry(
                as_text(rid),
                as_text(g_inc),
                as_text(tenant),
                as_int(num_tokens),
                as_int(priority),
                split_hashes(as_bytes(heads)),
            )

    async def cancel(self, rid: str) -> bool:
        return as_int(await self._client.run(CANCEL, self._keys[:2], [rid])) == 1

    async def drop_orphans(self) -> int:
        keys = (*self._keys[:2], self._beats)
        return as_int(await self._client.run(DROP_ORPHANS, keys))

    async def length(self) -> int:
        return as_int(await self._client.command("ZCARD", self._keys[0]))

    async def waiting(self) -> Waiting:
        members = as_list(await self._client.command("ZRANGE", self._keys[0], 0, -1))
        with narrowing():
            num_tokens = sum(int(as_text(member).split(":", 2)[1]) for member in members)
        return Waiting(len(members), num_tokens)
