"""What each gateway does once a second: beat, watch the others, reap what the dead left.

A beat is one round trip and waits for nothing else. A gateway that reaps while Redis is slow, 300
ms for each of a dead one's requests, would be taken for dead itself.
"""

from collections.abc import Mapping

from shared.clock import Clock
from shared.state.liveness import GatewayLiveness, GatewayWatch
from shared.state.records import ReapVerdict, RequestRecords


class Reaper:
    """Owned by one gateway. `beat` and `reap` every BEAT_INTERVAL_S, each by a task of its own."""

    def __init__(
        self,
        gateway_incarnation: str,
        liveness: GatewayLiveness,
        records: RequestRecords,
        clock: Clock,
    ) -> None:
        self._gateway_incarnation = gateway_incarnation
        self._liveness = liveness
        self._records = records
        self._watch = GatewayWatch(gateway_incarnation, clock)
        self._dead: Mapping[str, int] = {}
        """at the last look: the beat each stands at"""
        self._unsettled: dict[str, None] = {}
        """reaped, in order; kept so that a turn cut short loses none"""

    async def beat(self) -> bool:
        """Beat, and look at the others. True if Redis lost data: every live request of this gateway
        is to be admitted again."""
        seen = self._watch.observe(await self._liveness.beat(self._gateway_incarnation))
        self._dead = seen.dead
        return seen.lost

    async def reap(self) -> tuple[str, ...]:
        """HTTP requests that are ABANDONED now and not settled; their choices may still wait. Any
        gateways may reap the same one at once."""
        for g_inc, beat in self._dead.items():
            for rid in sorted(await self._liveness.live_requests(g_inc)):
                if await self._records.reap(rid, g_inc, beat) is ReapVerdict.REAPED:
                    self._unsettled[rid] = None
            await self._liveness.forget(g_inc, beat)
        return tuple(self._unsettled)

    def settle(self, rid: str) -> None:
        """Reaped, and nothing of it waits: do not name it again."""
        self._unsettled.pop(rid, None)
