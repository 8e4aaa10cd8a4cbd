"""KV events in Redis: per worker one capped stream and one set, changed together."""

from collections.abc import Mapping, Sequence

from shared.state.keys import KV_TTL_S, Keys
from shared.state.kv_events import (
    EVENTS_KEPT,
    MAX_EVENTS_READ,
    KVEvent,
    KVSnapshot,
    join_hashes,
    split_hashes,
)
from shared.state.redis_client import Argument, RedisClient, Script
from shared.state.reply import Reply, as_bytes, as_fields, as_int, as_list, as_text, narrowing

PUBLISH = Script.beside(__file__, "publish_kv")
RESET = Script.beside(__file__, "reset_kv")
SNAPSHOT = Script.beside(__file__, "snapshot_kv")


class RedisKVEvents:
    """`KVEvents` on a Redis server."""

    def __init__(self, client: RedisClient, keys: Keys, kept: int = EVENTS_KEPT) -> None:
        self._client = client
        self._keys = keys
        self._kept = kept

    async def publish(self, event: KVEvent) -> bool:
        arguments: list[Argument] = [
            event.seq,
            join_hashes(event.stored),
            join_hashes(event.removed),
            self._kept,
            KV_TTL_S,
        ]
        return (
            as_int(await self._client.run(PUBLISH, self._keys.kv(event.incarnation), arguments))
            == 1
        )

    async def reset(self, snapshot: KVSnapshot) -> None:
        held = join_hashes(sorted(snapshot.held))
        arguments: list[Argument] = [snapshot.seq, held, self._kept, KV_TTL_S]
        await self._client.run(RESET, self._keys.kv(snapshot.incarnation), arguments)

    async def read(self, after: Mapping[str, int]) -> Sequence[KVEvent]:
        if not after:
            return ()
        incs = {self._keys.kv(inc)[0]: inc for inc in after}
        positions = (f"{seq}-0" for seq in after.values())
        streams = await self._client.command(
            "XREAD", "COUNT", MAX_EVENTS_READ, "STREAMS", *incs, *positions
        )
        if streams is None:
            return ()
        events: list[KVEvent] = []
        with narrowing():
            for stream in as_list(streams):
                key, entries = as_list(stream)
                inc = incs[as_text(key)]
                events += (_event(inc, entry) for entry in as_list(entries))
        return events

    async def snapshot(self, incarnation: str) -> KVSnapshot:
        reply = await self._client.run(SNAPSHOT, self._keys.kv(incarnation))
        with narrowing():
            seq, held = as_list(reply)
            return KVSnapshot(incarnation, as_int(seq), frozenset(split_hashes(as_bytes(held))))


def _event(incarnation: str, entry: Reply) -> KVEvent:
    name, values = as_list(entry)
    fields = as_fields(values)
    return KVEvent(
        incarnation,
        int(as_text(name).partition("-")[0]),
        split_hashes(as_bytes(fields.get("stored", b""))),
        split_hashes(as_bytes(fields.get("removed", b""))),
        "reset" in fields,
    )
