"""What this worker has of its sources' pools, for as long as their owners' connections stand.

Each source has a connection of its own for it, opened with the ticket of the pull that needs it
first. Its end is the end of what stands on it, within a second (R19): the owner closed, or its
process is gone.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Generic, Protocol, TypeVar

from shared.errors import (
    BatonError,
    CannotMapError,
    CorruptPieceError,
    KVTransferError,
    PeerLostError,
)
from shared.tasks import Tasks, settled
from shared.transfer.frame_stream import FrameStream
from shared.transfer.pull import open_attempt
from shared.transfer.transport import PullRequest
from shared.transfer_address import TransferAddress

logger = logging.getLogger(__name__)


class Stands(Protocol):
    """The pool of one source, as this worker can read it."""

    @property
    def stands(self) -> bool: ...

    async def until_lost(self) -> None:
        """Returns when it cannot be read any more although the connection stands."""

    async def end(self) -> None:
        """Returns once nothing of the pool is read or held."""


Pool = TypeVar("Pool", bound=Stands)


class Standing(Generic[Pool]):
    """One for each source, shared by its pulls."""

    def __init__(
        self,
        fingerprint: str,
        connect: Callable[[TransferAddress], Awaitable[FrameStream]],
        begin: Callable[[str, FrameStream], Awaitable[Pool]],
    ) -> None:
        """`connect`: a stream to the source, both ends introduced. `begin`: what the source of that
        incarnation shows over a stream that was opened for it; CannotMapError, and nothing is left
        of it, if it is of no use here."""
        self._fingerprint = fingerprint
        self._connect = connect
        self._begin_pool = begin
        self._tasks = Tasks()
        self._live: dict[str, tuple[asyncio.Future[Pool], asyncio.Task[None]]] = {}
        """by the incarnation of the source; the task ends with the pool"""

    def __len__(self) -> int:
        return len(self._live)

    def standing(self, source: str) -> Pool | None:
        """What stands of the source of this incarnation; nothing is begun."""
        begun = self._live[source][0] if source in self._live else None
        if begun is None or not begun.done() or begun.exception() or not begun.result().stands:
            return None
        return begun.result()

    async def of(self, request: PullRequest) -> Pool:
        """The pool of the request's source. KVTransferError if there can be none now; the next
        request tries again."""
        while True:
            ours = request.source_incarnation not in self._live
            begun, task = self._live.get(request.source_incarnation) or self._begin(request)
            either: set[asyncio.Future[Any]] = {begun, task}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if begun.done() and (ours or not begun.exception()) and begun.result().stands:
                return begun.result()
            await settled([task])
            if ours:
                raise PeerLostError("the owner of the pool is gone, or this side is closing")

    async def close(self) -> None:
        """Ends all of them."""
        await self._tasks.close()

    def _begin(self, request: PullRequest) -> tuple["asyncio.Future[Pool]", "asyncio.Task[None]"]:
        source = request.source_incarnation
        begun: asyncio.Future[Pool] = asyncio.get_running_loop().create_future()
        task = self._tasks.start(self._stand(request, begun))
        self._live[source] = begun, task
        task.add_done_callback(lambda _: self._live.pop(source))
        return self._live[source]

    async def _stand(self, request: PullRequest, begun: "asyncio.Future[Pool]") -> None:
        """From the connection to its end; then nothing of the source's pool is held here."""
        try:
            stream = await self._reach(request.source)
            try:
                await self._stand_on(stream, request, begun)
            finally:
                stream.close()
        except BatonError as error:
            if begun.done():
                logger.warning("the pool of %s is given up: %s", request.source, error)
            else:
                damaged = not isinstance(error, KVTransferError)
                begun.set_exception(CorruptPieceError(str(error)) if damaged else error)
                begun.exception()  # whoever waited may have been cancelled

    async def _reach(self, source: TransferAddress) -> FrameStream:
        try:
            return await self._connect(source)
        except PeerLostError as error:
            raise CannotMapError(str(error)) from None

    async def _stand_on(
        self, stream: FrameStream, request: PullRequest, begun: "asyncio.Future[Pool]"
    ) -> None:
        await open_attempt(stream, request, self._fingerprint, "map")
        pool = await self._begin_pool(request.source_incarnation, stream)
        lost = asyncio.ensure_future(pool.until_lost())
        closed = asyncio.ensure_future(stream.until_closed())
        try:
            begun.set_result(pool)
            await asyncio.wait({lost, closed}, return_when=asyncio.FIRST_COMPLETED)
            if closed.done():
                closed.result()
        finally:
            lost.cancel()
            closed.cancel()
            await pool.end()
            await settled([lost, closed])
