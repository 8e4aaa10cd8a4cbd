"""KV blocks between workers of one host: decode maps prefill's pool and copies out of it.

Both meet at a unix socket, a file in a folder they share; `address` is its path. What is said
there is said over tcp too (`pull`, `session`). The bytes never cross it: prefill passes read-only
descriptors of its pool, and decode's mover copies (`blocks.mapping`, `blocks.copied`).
"""

import asyncio
import os
import socket
import struct
from functools import partial
from pathlib import Path

from shared.clock import Clock, SystemClock
from shared.errors import PeerLostError, SettingsError
from shared.loops import Loops
from shared.protocol import Attempt
from shared.transfer.blocks.copied import CopiedReads, ShownPool
from shared.transfer.blocks.mapping import BlockMover, Mappings
from shared.transfer.blocks.progress import Progress
from shared.transfer.folder import new_socket_name, remove_dead_sockets
from shared.transfer.frame_stream import FrameStream
from shared.transfer.offers import OfferTable
from shared.transfer.pulls import Pulls, introduced
from shared.transfer.readers import MAX_SESSIONS, Readers
from shared.transfer.session import Session
from shared.transfer.traffic import Traffic
from shared.transfer.transport import Offer, OnRelease, Pulled, PullRequest, TransferLimits

__all__ = ["BlockMover", "MappedTransport"]

MAX_PATH_BYTES = 100
"""the kernel takes 107 bytes"""


class MappedTransport:
    """Keeps the promise of `shared.transfer.transport.KVTransport`."""

    name = "mapped"

    def __init__(
        self,
        pool: ShownPool,
        incarnation: str,
        mover: BlockMover,
        *,
        folder: Path,
        cell_secret: str = "",
        limits: TransferLimits | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`folder`: where `start` makes the socket, with a name nobody had before. Pool and mover
        stay the caller's and outlive the transport."""
        self._incarnation = incarnation
        self._folder = folder
        self._cell_secret = cell_secret
        self._limits = limits or TransferLimits()
        self._layout = pool.memory.layout
        clock = clock or SystemClock()
        self.traffic = Traffic(clock)
        self._table = OfferTable(pool.memory, self._limits.lease_s, clock, mover)
        self._served = pool
        self._readers = Readers(cell_secret, self._stream, self._serve, _objection)
        self._mappings = Mappings(mover, self._layout.fingerprint(), self._connect)
        self._pulls = Pulls(
            self._layout, self._connect, self._reads, self.traffic, self._limits, clock
        )
        self._listener: socket.socket | None = None
        self._path: Path | None = None
        self.loops = Loops(clock)

    @property
    def on_release(self) -> OnRelease:
        return self._table.on_release

    @on_release.setter
    def on_release(self, on_release: OnRelease) -> None:
        self._table.on_release = on_release

    @property
    def address(self) -> str:
        """The absolute path of the socket; empty before `start`."""
        return "" if self._path is None else str(self._path)

    async def start(self) -> None:
        """Listen in `folder`, which is made if it is absent; sockets that killed workers left
        there are removed. SettingsError when its path is too long for a socket, OSError when
        nothing can be made there."""
        path = self._folder.absolute() / new_socket_name()
        if len(os.fsencode(path)) > MAX_PATH_BYTES:
            raise SettingsError(
                f"--transfer-dir: {self._folder} is too long for a socket's path; "
                f"with the socket's name it may have {MAX_PATH_BYTES} bytes"
            )
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        remove_dead_sockets(path.parent)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.setblocking(False)
        self._listener.bind(str(path))
        self._path = path
        path.chmod(0o666)  # for whoever may enter the folder; `_objection` decides
        self._listener.listen(MAX_SESSIONS)
        self.loops.start("kv_accept", partial(self._readers.accept, self._listener))
        self._table.start(self.loops)

    def offer(self, attempt: Attempt, ticket: str) -> Offer:
        return self._table.open(attempt, ticket)

    async def pull(self, request: PullRequest) -> Pulled:
        return await self._pulls.pull(request)

    async def keep(self, request: PullRequest) -> None:
        await self._pulls.keep(request)

    async def close(self) -> None:
        try:
            await self.loops.close()
            await self._pulls.close()
            await self._mappings.close()
            await self._readers.close()
        finally:
            self._table.close()
            if self._listener is not None:
                self._listener.close()
                self._listener = None
            if self._path is not None:
                self._path.unlink(missing_ok=True)
                self._path = None

    async def _serve(self, stream: FrameStream) -> None:
        session = Session(
            stream, self._served, self._incarnation, self._table, self.traffic, self._limits
        )
        await session.run()

    def _reads(self, progress: Progress, _: FrameStream) -> CopiedReads:
        return CopiedReads(progress, self._mappings, self._layout, self.traffic, self._limits)

    async def _connect(self, source: str) -> FrameStream:
        return await introduced(self._stream(await self._dial(source)), self._cell_secret)

    async def _dial(self, source: str) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.setblocking(False)
        try:
            async with asyncio.timeout(self._limits.progress_timeout_s):
                await asyncio.get_running_loop().sock_connect(sock, source)
        except BaseException as error:
            sock.close()
            if isinstance(error, OSError):
                raise PeerLostError(f"the source cannot be reached: {error}") from None
            raise
        return sock

    def _stream(self, sock: socket.socket) -> FrameStream:
        return FrameStream(sock, self._limits.progress_timeout_s)


def _objection(sock: socket.socket) -> str:
    """A peer of another user, unless either is root: pools are shown to nobody else."""
    ours, theirs = os.geteuid(), peer_uid(sock)
    return "" if ours == theirs or 0 in (ours, theirs) else "it runs as another user"


def peer_uid(sock: socket.socket) -> int:
    """Whose process is at the other end, as the kernel saw it connect."""
    size = struct.calcsize("3i")
    uid: int = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))[1]
    return uid
