"""Which gateways live: each counts its beats; the others watch the counters.

Time is never compared across machines. A counter that stands still for 10 s of an observer's
own monotonic clock, through observations that succeeded, is a dead gateway.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from shared.clock import Clock

BEAT_INTERVAL_S = 1.0
SILENCE_S = 10.0
"""a gateway that did not beat for this long is taken for dead"""
LONGEST_STEP_S = 2.0
"""how much silence one observation may add: an outage of Redis or of the observer itself is
no evidence against the others"""


class GatewayLiveness(Protocol):
    """Beats of all gateways and what each owns. One round trip a call, all repeatable."""

    async def beat(self, gateway_incarnation: str) -> Mapping[str, int]:
        """Counts one beat of this gateway and answers every gateway's count, its own too."""

    async def live_requests(self, gateway_incarnation: str) -> frozenset[str]:
        """rids admitted by a gateway and not ended."""

    async def forget(self, gateway_incarnation: str, beat: int | None = None) -> bool:
        """Drops a gateway that owns nothing any more; False if it still does.

        `beat`: only if its count is still this one. None: a gateway about itself, at its end.
        """


@dataclass(frozen=True)
class Observation:
    """What one look at the counters says."""

    dead: Mapping[str, int]
    """silent gateways and the beat each stands at: the proof that `reap` asks for"""
    lost: bool
    """Redis forgot beats of ours: it lost data, so live requests have to be admitted again"""


class GatewayWatch:
    """One gateway's view of the others. Pure: fed with counters, reads only its clock."""

    def __init__(self, gateway_incarnation: str, clock: Clock) -> None:
        self._gateway_incarnation = gateway_incarnation
        self._clock = clock
        self._own_beats = 0
        self._last_look_s = clock.monotonic_s()
        self._seen: dict[str, tuple[int, float]] = {}

    def observe(self, beats: Mapping[str, int]) -> Observation:
        """`beats` as `beat` just answered them."""
        now_s = self._clock.monotonic_s()
        step_s = min(now_s - self._last_look_s, LONGEST_STEP_S)
        self._last_look_s = now_s
        seen: dict[str, tuple[int, float]] = {}
        for g_inc, count in beats.items():
            old_count, silent_s = self._seen.get(g_inc, (count, -step_s))
            seen[g_inc] = (count, silent_s + step_s if count == old_count else 0.0)
        self._seen = seen
        own_beats = beats.get(self._gateway_incarnation, 0)
        lost = own_beats <= self._own_beats
        self._own_beats = own_beats
        dead = {
            g_inc: count
            for g_inc, (count, silent_s) in seen.items()
            if silent_s >= SILENCE_S and g_inc != self._gateway_incarnation
        }
        return Observation(dead, lost)
