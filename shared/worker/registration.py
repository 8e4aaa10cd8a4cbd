"""A worker's standing in Redis: its registry entry and the KV events of its prefix cache.

Redis may be away for any time; the worker goes on, and is back in the registry within a second
of Redis answering again.
"""

import asyncio
import logging
import time

from shared.errors import StateUnavailableError
from shared.state.kv_feed import KEEPALIVE_S, KVPublisher
from shared.state.registry import REFRESH_INTERVAL_S, WorkerEntry, WorkerRegistry

logger = logging.getLogger(__name__)

FLUSH_INTERVAL_S = 0.1


class Registration:
    """Keeps one incarnation listed until `withdraw`."""

    def __init__(
        self, registry: WorkerRegistry, entry: WorkerEntry, publisher: KVPublisher
    ) -> None:
        self._registry = registry
        self._entry = entry
        self._publisher = publisher
        self._reachable = True
        self._listed = False
        self._withdrawn = False
        self._writing = asyncio.Lock()
        """a refresh that is on its way must not overtake the withdrawal"""

    @property
    def is_listed(self) -> bool:
        """Whether gateways can find this worker, as far as the last refresh knows."""
        return self._listed and not self._withdrawn

    async def keep(self) -> None:
        """Refresh until `withdraw`; run it as a task."""
        while not self._withdrawn:
            async with self._writing:
                await self._attempt_register()
            await asyncio.sleep(REFRESH_INTERVAL_S)

    async def publish(self) -> None:
        """Tell what the prefix cache gained and lost, for ever; run it as a task."""
        flushed_s = 0.0
        while True:
            await asyncio.sleep(FLUSH_INTERVAL_S)
            if self._publisher.has_changes or time.monotonic() - flushed_s > KEEPALIVE_S:
                try:
                    await self._publisher.flush()
                except StateUnavailableError:
                    continue
                flushed_s = time.monotonic()

    async def withdraw(self) -> None:
        """Leave the registry for good; a gateway's link says the rest. Safe to call twice."""
        if self._withdrawn:
            return
        self._withdrawn = True
        async with self._writing:
            try:
                await self._registry.remove(self._entry.pool, self._entry.inc)
            except StateUnavailableError:
                logger.info("redis is away; the registry entry will expire by itself")

    async def _attempt_register(self) -> None:
        if self._withdrawn:
            return
        try:
            await self._registry.register(self._entry)
        except StateUnavailableError as error:
            if self._reachable:
                logger.warning("redis does not answer, serving goes on: %s", error)
            self._reachable = self._listed = False
            return
        if not self._reachable:
            logger.info("redis answers again")
        self._reachable = self._listed = True
