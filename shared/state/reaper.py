"""What each gateway does once a second: beat, watch the others, reap what the dead left."""

from dataclasses import dataclass

from shared.clock import Clock
from shared.state.liveness import GatewayLiveness, GatewayWatch
from shared.state.records import ReapVerdict, RequestRecords


@dataclass(frozen=True)
class ReapTurn:
    """Result of one turn."""

    reaped: tuple[str, ...]
    """HTTP requests that are ABANDONED now and not settled; their choices may still wait"""
    lost: bool
    """Redis lost data: admit every live request of this gateway again"""


class Reaper:
    """Owned by one gateway; `turn` every BEAT_INTERVAL_S, by one task."""

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
        self._unsettled: dict[str, None] = {}
        """reaped, in order; kept so that a turn cut short loses none"""
        self._lost = False
        """seen, and not yet returned"""

    async def turn(self) -> ReapTurn:
        """One round trip while everybody lives. Any gateways may reap the same one at once."""
        seen = self._watch.observe(await self._liveness.beat(self._gateway_incarnation))
        self._lost |= seen.lost
        for g_inc, beat in seen.dead.items():
            for rid in sorted(await self._liveness.live_requests(g_inc)):
                if await self._records.reap(rid, g_inc, beat) is ReapVerdict.REAPED:
                    self._unsettled[rid] = None
            await self._liveness.forget(g_inc, beat)
        lost, self._lost = self._lost, False
        return ReapTurn(tuple(self._unsettled), lost)

    def settle(self, rid: str) -> None:
        """Reaped, and nothing of it waits: do not name it again."""
        self._unsettled.pop(rid, None)
