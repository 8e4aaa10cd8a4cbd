"""The workers that are asked to take no new work, so that their pods can go.

A drain ends when it is not renewed: an autoscaler that dies takes nothing away.
"""

from collections.abc import Collection, Iterable
from typing import Protocol

from services.autoscaler.view import WorkerView

DRAIN_S = 30.0
"""a drain ends if it is not renewed for this long"""
RENEW_S = 5.0


class DrainStore(Protocol):
    """Where workers read it; `shared.state.registry.WorkerRegistry` is one."""

    async def drain(self, pool: str, incarnation: str, for_s: float) -> None:
        """StateUnavailableError."""


class Drains:
    """Of one pool at a time."""

    def __init__(self, store: DrainStore) -> None:
        self._store = store
        self._pool = ""
        self._asked: frozenset[str] = frozenset()

    async def ask(
        self, pool: str, wanted: Collection[str], workers: Iterable[WorkerView]
    ) -> tuple[str, ...]:
        """These incarnations drain from now on, and no others: also what another autoscaler asked
        for before ends. Returns those that did not drain before. StateUnavailableError."""
        before, self._pool = self._asked, pool
        draining = {worker.incarnation for worker in workers if worker.is_draining}
        for incarnation in (before | draining).difference(wanted):
            await self._store.drain(pool, incarnation, 0)
        self._asked = frozenset(wanted)
        await self.renew()
        return tuple(sorted(self._asked - before))

    async def renew(self) -> None:
        """StateUnavailableError."""
        for incarnation in self._asked:
            await self._store.drain(self._pool, incarnation, DRAIN_S)

    async def end(self) -> None:
        """Nobody drains on our word any more. StateUnavailableError."""
        await self.ask(self._pool, (), ())
