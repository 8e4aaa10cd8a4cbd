"""KV blocks between workers of one host: decode maps prefill's pool and copies out of it.

Both meet at a unix socket, a file in a folder they share. What is said there is said over tcp too
(`pull`, `session`). The bytes never cross it: prefill passes read-only descriptors of its pool, and
decode's mover copies (`blocks.mapping`, `blocks.copied`).
"""

import asyncio
import os
import socket
import struct
from functools import partial
from pathlib import Path

from shared.errors import PeerLostError, SettingsError
from shared.kv.layout import KVLayout
from shared.transfer.blocks.copied import CopiedReads, ShownPool
from shared.transfer.blocks.mapping import BlockMover, Mapping, mapped_pool
from shared.transfer.blocks.progress import Progress
from shared.transfer.blocks.standing import Standing
from shared.transfer.frame_stream import FrameStream
from shared.transfer.offers import OfferTable
from shared.transfer.readers import MAX_SESSIONS
from shared.transfer.socket_transport import SocketTransport
from shared.transfer.terms import Terms
from shared.transfer.ways.folder import new_socket_name, remove_dead_sockets
from shared.transfer.ways.way import OneWay
from shared.transfer_address import NOWHERE, TransferAddress

MAX_PATH_BYTES = 100
"""the kernel takes 107 bytes"""


class SocketListener:
    """Keeps the promise of `Listener`; shows its pool to whoever may connect to its socket."""

    def __init__(self, served: ShownPool, folder: Path) -> None:
        """`folder`: where `open` makes the socket, with a name nobody had before."""
        self.served = served
        self._folder = folder
        self._socket: socket.socket | None = None
        self._path: Path | None = None

    @property
    def address(self) -> TransferAddress:
        """The absolute path of the socket."""
        return NOWHERE if self._path is None else TransferAddress(socket=str(self._path))

    def open(self) -> socket.socket:
        """Listen in the folder, which is made if it is absent; sockets that killed workers left
        there are removed. SettingsError when its path is too long for a socket or there is no
        pool to show, OSError when nothing can be made there."""
        if not self.served.can_be_mapped:
            raise SettingsError(
                "--transport mapped: this GPU's driver lets no other worker map its memory; "
                "--transport auto finds another way"
            )
        path = self._folder.absolute() / new_socket_name()
        if len(os.fsencode(path)) > MAX_PATH_BYTES:
            raise SettingsError(
                f"--transfer-dir: {self._folder} is too long for a socket's path; "
                f"with the socket's name it may have {MAX_PATH_BYTES} bytes"
            )
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        remove_dead_sockets(path.parent)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        self._socket.bind(str(path))
        self._path = path
        path.chmod(0o666)  # for whoever may enter the folder; `objection` decides
        self._socket.listen(MAX_SESSIONS)
        return self._socket

    def objection(self, sock: socket.socket) -> str:
        """A peer of another user: pools are shown to nobody else."""
        return objection(sock)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._path is not None:
            self._path.unlink(missing_ok=True)
            self._path = None


class MappedWay:
    """Keeps the promise of `Way`; blocks are copied out of the source's pool."""

    name = CopiedReads.name

    def __init__(self, layout: KVLayout, mover: BlockMover, terms: Terms) -> None:
        self._layout = layout
        self._terms = terms
        self.mappings: Standing[Mapping] = Standing(
            layout.fingerprint(), self.connect, partial(mapped_pool, mover)
        )

    async def connect(self, source: TransferAddress) -> FrameStream:
        """An owner of another user is not even spoken to: it would hang up."""
        if not source.socket:
            raise PeerLostError("the source cannot be mapped: it names no socket")
        sock = await self._dial(source.socket)
        if problem := objection(sock):
            sock.close()
            raise PeerLostError(f"the source cannot be mapped: {problem}")
        return await self._terms.introduce(sock)

    def reads(self, progress: Progress, stream: FrameStream) -> CopiedReads:
        del stream  # no block crosses it
        terms = self._terms
        return CopiedReads(progress, self.mappings, self._layout, terms.traffic, terms.limits)

    async def close(self) -> None:
        await self.mappings.close()

    async def _dial(self, path: str) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.setblocking(False)
        try:
            async with asyncio.timeout(self._terms.limits.progress_timeout_s):
                await asyncio.get_running_loop().sock_connect(sock, path)
        except BaseException as error:
            sock.close()
            if isinstance(error, FileNotFoundError):
                raise PeerLostError(f"{path} is no socket here: another host?") from None
            if isinstance(error, OSError):
                raise PeerLostError(f"the source cannot be reached: {error}") from None
            raise
        return sock


def mapped_transport(
    pool: ShownPool,
    incarnation: str,
    mover: BlockMover,
    *,
    folder: Path,
    terms: Terms | None = None,
) -> SocketTransport:
    """Between workers of one host. Pool and mover stay the caller's and outlive the transport."""
    terms = terms or Terms()
    return SocketTransport(
        incarnation,
        OfferTable(pool.memory, terms.limits.lease_s, terms.clock, mover),
        [SocketListener(pool, folder)],
        OneWay(MappedWay(pool.memory.layout, mover, terms)),
        terms,
    )


def objection(sock: socket.socket) -> str:
    """To a peer of another user, unless either is root."""
    ours, theirs = os.geteuid(), peer_uid(sock)
    return "" if ours == theirs or 0 in (ours, theirs) else "it runs as another user"


def peer_uid(sock: socket.socket) -> int:
    """Whose process is at the other end, as the kernel saw it connect."""
    size = struct.calcsize("3i")
    uid: int = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))[1]
    return uid
