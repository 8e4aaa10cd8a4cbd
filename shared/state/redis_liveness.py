"""Beats of gateways in Redis: one hash of counters."""

from collections.abc import Mapping

from shared.state.keys import LIVE_TTL_S, Keys
from shared.state.redis_client import RedisClient, Script
from shared.state.reply import as_fields, as_int, as_list, as_text

BEAT = Script.beside(__file__, "beat")
FORGET = Script.beside(__file__, "forget")


class RedisGatewayLiveness:
    """`GatewayLiveness` on a Redis server."""

    def __init__(self, client: RedisClient, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    async def beat(self, gateway_incarnation: str) -> Mapping[str, int]:
        counts = await self._client.run(BEAT, [self._keys.beats], [gateway_incarnation, LIVE_TTL_S])
        return {name: as_int(count) for name, count in as_fields(counts).items()}

    async def live_requests(self, gateway_incarnation: str) -> frozenset[str]:
        rids = as_list(await self._client.command("SMEMBERS", self._keys.live(gateway_incarnation)))
        return frozenset(as_text(rid) for rid in rids)

    async def forget(self, gateway_incarnation: str, beat: int | None = None) -> bool:
        keys = [self._keys.beats, self._keys.live(gateway_incarnation)]
        arguments = [gateway_incarnation, "" if beat is None else beat]
        return as_int(await self._client.run(FORGET, keys, arguments)) == 1
