"""A worker's standing in Redis: its registry entry and the KV events of its prefix cache.

Redis may be away for any time; the worker goes on, and is back in the registry within a second
of Redis answering again.
"""

import asyncio
import logging
import time
from collections.abc import Callable

from shared.errors import StateUnavailableError
from shared.loops import Loops
from shared.state.kv_feed import KEEPALIVE_S, KVPublisher
from shared.state.registry import REFRESH_INTERVAL_S, WorkerEntry, WorkerRegistry

logger = logging.getLogger(__name__)

FLUSH_INTERVAL_S = 0.1


class Registration:
    """Keeps one incarnation listed until `withdraw`."""

    def __init__(
        self,
        registry: WorkerRegistry,
        entry: Callable[[], WorkerEntry],
        publisher: KVPublisher,
        on_drain: Callable[[bool], None],
    ) -> None:
        """`entry`: of this incarnation, as of now. `on_drain`: told at each refresh whether this
        worker is asked to take no new work."""
        self._registry = registry
        self._entry = entry
        self._publisher = publisher
        self._on_drain = on_drain
        self._listed = False
        """as far as the last refresh knows"""
        self._was_listed = asyncio.Event()
        self._flushed_s = 0.0
        self._withdrawn = False
        self._writing = asyncio.Lock()
        """a refresh that is on its way must not overtake the withdrawal"""

    @property
    def is_known(self) -> bool:
        """Gateways have been able to find this worker. A Redis that is away later takes no
        links away, so it makes a worker no less ready."""
        return self._was_listed.is_set() and not self._withdrawn

    async def until_known(self) -> None:
        """Returns once gateways and other workers can find this one."""
        await self._was_listed.wait()

    def start(self, loops: Loops) -> None:
        """Refresh until `withdraw`; tell what the prefix cache gained and lost."""
        loops.start("registration", self._refresh, REFRESH_INTERVAL_S)
        loops.start("kv_events", self._publish, FLUSH_INTERVAL_S)

    async def withdraw(self) -> None:
        """Leave the registry for good; a gateway's link says the rest. Safe to call twice."""
        if self._withdrawn:
            return
        self._withdrawn = True
        async with self._writing:
            try:
                entry = self._entry()
                await self._registry.remove(entry.pool, entry.incarnation)
            except StateUnavailableError:
                logger.info("redis is away; the registry entry will expire by itself")

    async def _refresh(self) -> None:
        async with self._writing:
            if self._withdrawn:
                return
            try:
                self._on_drain(await self._registry.register(self._entry()))
            except Exception:
                self._listed = False
                self._on_drain(False)  # whoever asked for it cannot take it back now
                raise
        if not self._listed:
            logger.info("ready: registered in redis")
        self._listed = True
        self._was_listed.set()

    async def _publish(self) -> None:
        if self._publisher.has_changes or time.monotonic() - self._flushed_s > KEEPALIVE_S:
            await self._publisher.flush()
            self._flushed_s = time.monotonic()
