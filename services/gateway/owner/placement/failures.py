"""What has failed lately in this gateway's cell: a circuit breaker per worker and per pair. Pure.

closed --failure--> open for 1 s --> half open: one request is the probe
half open --success--> closed          --failure--> open for twice as long, up to 30 s
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass

from services.gateway.owner.links.worker_view import Pace
from services.gateway.owner.placement.avoidance import Key
from services.gateway.owner.placement.outliers import Outliers
from shared.process import worker_id_of

FIRST_PAUSE_S = 1.0
MAX_PAUSE_S = 30.0
FORGET_S = 120.0
"""after its pause: nobody chose it, or it is no more"""


@dataclass(slots=True)
class _Breaker:
    pause_s: float
    until_s: float
    num_failures: int = 1
    """since its last success"""
    probed: bool = False
    """a request was let through since the last pause ended"""


class Failures:
    """`now_s` is any monotonic clock's; the same for all calls."""

    def __init__(self) -> None:
        self._breakers: dict[Key, _Breaker] = {}
        self._outliers = Outliers()

    def note_paces(self, paces: Sequence[Pace], now_s: float) -> None:
        """Of all workers there are; to be told again and again."""
        self._outliers.look(paces, now_s)

    def note_failure(self, key: Key, now_s: float) -> None:
        """An attempt there failed. Many that fail of one cause open it once."""
        self._forget(now_s)
        breaker = self._breakers.get(key)
        if breaker is None:
            self._breakers[key] = _Breaker(FIRST_PAUSE_S, now_s + FIRST_PAUSE_S)
            return
        breaker.num_failures += 1
        if breaker.probed or now_s >= breaker.until_s:
            breaker.pause_s = min(2 * breaker.pause_s, MAX_PAUSE_S)
            breaker.until_s = now_s + breaker.pause_s
            breaker.probed = False

    def note_success(self, *keys: Key) -> None:
        """An attempt that began there got on."""
        for key in keys:
            self._breakers.pop(key, None)

    def note_choice(self, key: Key, now_s: float) -> None:
        """A request goes there. After the pause it is the probe, and the only one for as long as
        that pause was, should nothing be heard of it."""
        breaker = self._breakers.get(key)
        if breaker is not None and now_s >= breaker.until_s:
            breaker.until_s = now_s + breaker.pause_s
            breaker.probed = True

    def closed_to(self, now_s: float) -> frozenset[Key]:
        """Where requests should not go now."""
        slow = self._outliers.left_out(now_s)
        if not (self._breakers or slow):
            return frozenset()
        closed = [key for key, b in self._breakers.items() if now_s < b.until_s]
        return frozenset([*closed, *((inc,) for inc in slow)])

    def broken(self, now_s: float) -> frozenset[Key]:
        """The pairs among them that failed more than once: trying again did not help."""
        return frozenset(
            key
            for key in self.closed_to(now_s)
            if len(key) > 1 and self._breakers[key].num_failures > 1
        )

    def trouble(self, linked: Set[str], now_s: float) -> str:
        """Which pairs of these workers failed again when they were tried again, unless it is long
        ago, and which are left out for being slow; nothing if all is well."""
        slow = [
            f"{worker_id_of(inc)} decodes much slower than the others and gets no new request"
            for inc in sorted(self._outliers.left_out(now_s) & linked)
        ]
        broken = (
            f"no KV goes from {worker_id_of(key[0])} to {worker_id_of(key[1])}: "
            f"{breaker.num_failures} attempts in a row failed, and {worker_id_of(key[1])}'s log "
            "says why"
            for key, breaker in sorted(self._breakers.items(), key=lambda item: item[0])
            if len(key) > 1 and breaker.pause_s > FIRST_PAUSE_S and linked >= set(key)
            if now_s < breaker.until_s + FORGET_S
        )
        return "; ".join([*broken, *slow])

    def _forget(self, now_s: float) -> None:
        gone = [key for key, b in self._breakers.items() if now_s >= b.until_s + FORGET_S]
        for key in gone:
            del self._breakers[key]
