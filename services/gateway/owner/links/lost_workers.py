"""Workers that died, or cannot be reached, and are wanted back. Pure."""

from collections.abc import Collection
from dataclasses import dataclass

from services.gateway.owner.links.unlinked import named
from shared.state.keys import WORKER_TTL_S
from shared.state.registry import REFRESH_INTERVAL_S

GONE_S = 600.0
"""away for so long it is taken to be gone for good"""
WITHDRAWN_S = WORKER_TTL_S - 2 * REFRESH_INTERVAL_S
"""whoever is listed no more so soon has left the registry itself: the entry of a worker that dies
stays for longer"""


@dataclass
class _Lost:
    worker_id: str
    role: str
    since_s: float
    is_listed: bool = True


class LostWorkers:
    """By incarnation, the longest lost first."""

    def __init__(self) -> None:
        self._lost: dict[str, _Lost] = {}

    def note(self, incarnation: str, worker_id: str, role: str, now_s: float) -> None:
        """Its link broke although it did not drain."""
        self._lost[incarnation] = _Lost(worker_id, role, now_s)

    def linked(self, worker_id: str, role: str) -> None:
        """One that is lost is back, or another one of its role has its place."""
        back = [inc for inc, lost in self._lost.items() if lost.worker_id == worker_id]
        replaced = [inc for inc, lost in self._lost.items() if lost.role == role]
        for incarnation in back or replaced[:1]:
            del self._lost[incarnation]

    def see(self, listed: Collection[str], now_s: float) -> None:
        """Which incarnations the registry lists now. A worker that has left it is not
        wanted back."""
        for incarnation, lost in list(self._lost.items()):
            away_s = now_s - lost.since_s
            has_left = lost.is_listed and incarnation not in listed and away_s < WITHDRAWN_S
            if has_left or away_s >= GONE_S:
                del self._lost[incarnation]
            else:
                lost.is_listed = incarnation in listed

    def text(self) -> str:
        """Those that the registry has forgotten too; it is `Unlinked` that names the others."""
        names = sorted(lost.worker_id for lost in self._lost.values() if not lost.is_listed)
        if not names:
            return ""
        count = "1 worker was" if len(names) == 1 else f"{len(names)} workers were"
        return f"{count} lost and not replaced ({named(names)})"
