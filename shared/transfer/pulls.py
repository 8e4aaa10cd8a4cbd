"""Decode's dialling end: one connection for each attempt that is pulled or kept."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from shared.challenge import Challenge, ChallengeError
from shared.clock import Clock
from shared.errors import PeerLostError
from shared.kv.layer_groups import layer_groups
from shared.kv.layout import KVLayout
from shared.protocol import VERSION
from shared.tasks import Tasks
from shared.transfer.blocks.progress import Progress, Reads
from shared.transfer.frame_stream import FrameStream
from shared.transfer.pull import Pull
from shared.transfer.slots import Slots
from shared.transfer.traffic import Traffic
from shared.transfer.transport import Pulled, PullRequest, TransferLimits

logger = logging.getLogger(__name__)


async def introduced(stream: FrameStream, cell_secret: str) -> FrameStream:
    """The stream, once both ends have proved themselves. PeerLostError, and closed, if not."""
    try:
        await stream.introduce(Challenge(cell_secret, "pull", VERSION, dials=True))
    except BaseException as error:
        stream.close()
        if isinstance(error, ChallengeError):
            raise PeerLostError(f"the source cannot be pulled from: {error}") from None
        raise
    return stream


class Pulls:
    """All pulls of one transport."""

    def __init__(
        self,
        layout: KVLayout,
        connect: Callable[[str], Awaitable[FrameStream]],
        reads_of: Callable[[Progress, FrameStream], Reads],
        traffic: Traffic,
        limits: TransferLimits,
        clock: Clock,
    ) -> None:
        """`connect`: a stream to the source at an address, both
        ends introduced. `reads_of`: how the blocks of a pull over such a stream come."""
        self._fingerprint = layout.fingerprint()
        self._groups = layer_groups(layout)
        self._connect = connect
        self._reads_of = reads_of
        self._traffic = traffic
        self._limits = limits
        self._clock = clock
        self._slots = Slots(limits.max_pulls)
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
        stream = await self._connect(request.source)
        try:
            progress = Progress(request, self._groups, self._clock)
            pull = self._pull_over(stream, progress)
            pulled = await pull.run(self._reads_of(progress, stream))
        except BaseException:
            stream.close()
            raise
        stream.close_after(self._tasks.start(stream.finish_sending()))
        return pulled

    async def _keep(self, request: PullRequest) -> None:
        await asyncio.sleep(self._limits.renew_every_s)
        try:
            stream = await self._connect(request.source)
        except PeerLostError as error:
            logger.info("the lease of %s is not kept: %s", request.attempt, error)
            return
        try:
            progress = Progress(request, self._groups, self._clock)
            await self._pull_over(stream, progress).keep()
        finally:
            stream.close()

    def _pull_over(self, stream: FrameStream, progress: Progress) -> Pull:
        return Pull(
            progress,
            stream,
            self._fingerprint,
            self._slots.of(progress.request.source_incarnation),
            self._traffic,
            self._limits,
            self._clock,
        )
