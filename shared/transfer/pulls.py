"""Decode's dialling end: one connection for each attempt that is pulled or kept."""

import asyncio
import contextlib
import logging
from dataclasses import replace

from shared.errors import KVTransferError, PeerLostError
from shared.kv.layer_groups import layer_groups
from shared.kv.layout import KVLayout
from shared.tasks import Tasks
from shared.transfer.blocks.progress import Progress
from shared.transfer.frame_stream import FrameStream
from shared.transfer.pull import Pull
from shared.transfer.slots import Slots
from shared.transfer.terms import Terms
from shared.transfer.transport import Pulled, PullRequest
from shared.transfer.ways.way import Ways

logger = logging.getLogger(__name__)


class Pulls:
    """All pulls of one transport."""

    def __init__(self, layout: KVLayout, ways: Ways, terms: Terms) -> None:
        self._fingerprint = layout.fingerprint()
        self._groups = layer_groups(layout)
        self._ways = ways
        self._terms = terms
        self._slots = Slots(terms.limits.max_pulls)
        self._tasks = Tasks()

    async def pull(self, request: PullRequest) -> Pulled:
        """Step 6: read while prefill computes, verify once, release."""
        return await self._tasks.run(self._pull(request))

    async def keep(self, request: PullRequest) -> None:
        await self._tasks.run(self._keep(request))

    async def close(self) -> None:
        """Pulls in flight fail; returns once nothing touches their destinations."""
        await self._tasks.close()

    async def _pull(self, request: PullRequest) -> Pulled:
        way, why = await self._ways.of(request)
        stream = await way.connect(request.source)
        try:
            progress = Progress(request, self._groups, self._terms.clock)
            pull = self._pull_over(stream, progress)
            pulled = await pull.run(way.reads(progress, stream))
        except BaseException as error:
            stream.close()
            if isinstance(error, KVTransferError):
                self._ways.note(request, way, error)
            raise
        self._ways.note(request, way, None)
        stream.close_after(self._tasks.start(stream.finish_sending()))
        bytes_s = self._terms.traffic.bytes_s(request.source_incarnation)
        return replace(pulled, why=why, bytes_s=bytes_s)

    async def _keep(self, request: PullRequest) -> None:
        with contextlib.suppress(KVTransferError):  # then the pull says so
            await self._ways.of(request)
        await asyncio.sleep(self._terms.limits.renew_every_s)
        try:
            stream = await self._ways.decided(request).connect(request.source)
        except PeerLostError as error:
            logger.info("the lease of %s is not kept: %s", request.attempt, error)
            return
        try:
            progress = Progress(request, self._groups, self._terms.clock)
            await self._pull_over(stream, progress).keep()
        finally:
            stream.close()

    def _pull_over(self, stream: FrameStream, progress: Progress) -> Pull:
        return Pull(
            progress,
            stream,
            self._fingerprint,
            self._slots.of(progress.request.source_incarnation),
            self._terms.traffic,
            self._terms.limits,
            self._terms.clock,
        )
