"""Frames over one non-blocking stream socket, payload copied once: from and to the KV blocks.

Plain socket calls and the event loop's readiness events, no stream buffers: nothing is held in
user space beyond the frame being read. Works on asyncio's loops and on uvloop's. A peer that
neither sends nor takes a byte for `timeout_s`, closes, or resets is a PeerLostError.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any

from shared.challenge import TIMEOUT_S, Challenge, ChallengeError
from shared.errors import (
    CorruptPieceError,
    PeerLostError,
    ProtocolError,
    UnknownMessageError,
)
from shared.sockets import keep_responsive
from shared.transfer.frames import (
    MAX_HEADER_BYTES,
    PREFIX_BYTES,
    Frame,
    Prefix,
    decode_header,
    decode_prefix,
    encode,
)

LINGER_S = 1.0
_MAX_VIEWS = 64
"""buffers in one system call; the kernel's limit is 1,024"""
Moved = Callable[[int], None]
"""told how many bytes of a payload each system call moved"""
SendMore = Callable[[list[memoryview], Moved], Awaitable[None]]
_TURN_BYTES = 256 * 2**10
"""bytes moved before other tasks of the loop get a turn: a decode worker's tokens pass through the
same loop, and with 4 MiB a turn they waited up to 60 ms during a pull"""


class FrameStream:
    """One connection, either end. One reader at a time; senders take turns by frame."""

    def __init__(self, sock: socket.socket, timeout_s: float) -> None:
        self._socket = sock
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._sending = asyncio.Lock()
        self._num_sent = 0
        self._num_received = 0
        self.max_header_bytes = MAX_HEADER_BYTES
        sock.setblocking(False)
        keep_responsive(sock)

    @property
    def local_host(self) -> str:
        """The address by which the peer reaches this host, where it is on another one."""
        return str(self._socket.getsockname()[0])

    async def introduce(self, challenge: Challenge) -> None:
        """Both ends prove that they know the cell secret; nothing else comes before it.

        ChallengeError when the peer is a stranger, PeerLostError when it leaves or takes too long.
        """
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await self._send_views([memoryview(challenge.greeting)])
                while not challenge.done:
                    step = bytearray(challenge.num_expected)
                    await self.receive_into([memoryview(step)])
                    await self._send_views([memoryview(challenge.receive(bytes(step)))])
        except TimeoutError:
            raise PeerLostError("the peer did not prove itself in time") from None
        except ChallengeError as error:
            with contextlib.suppress(PeerLostError):
                await self._send_views([memoryview(error.answer)])
            raise

    async def send(
        self, frame: Frame, payload: Sequence[memoryview] = (), moved: Moved | None = None
    ) -> None:
        """One frame; its payload is read from `payload` while it is sent."""
        async with self._sending:
            head = self._head(frame, sum(map(len, payload)))
            await self._send_views([head, *payload], moved)

    @contextlib.asynccontextmanager
    async def sending(self, frame: Frame, payload_bytes: int) -> AsyncIterator[SendMore]:
        """One frame whose payload the caller sends meanwhile, piece by piece. If it sends less,
        the connection is of no use any more."""
        async with self._sending:
            await self._send_views([self._head(frame, payload_bytes)])
            yield self._send_views

    async def receive(self) -> tuple[Frame, int]:
        """The next frame and the bytes of its payload, which the caller must take next. A kind that
        is not known here is skipped, if it has no payload.

        CorruptPieceError on damage, ProtocolError on what the format does not allow.
        """
        while True:
            prefix, header = await self._receive_head()
            try:
                return decode_header(prefix, header), prefix.payload_bytes
            except UnknownMessageError:
                if prefix.payload_bytes:
                    raise

    async def receive_into(self, views: Iterable[memoryview], moved: Moved | None = None) -> None:
        """Fill the views in order. When it returns or raises, nothing writes to them any more:
        each system call has ended before anything is awaited."""
        left = [view for view in views if len(view)]
        left.reverse()
        turn_bytes = 0
        while left:
            try:
                received = self._socket.recvmsg_into(_next_turn(left))[0]
            except (BlockingIOError, InterruptedError):
                turn_bytes = 0
                await self._until_ready(self._loop.add_reader, self._loop.remove_reader)
                continue
            except OSError as error:
                raise PeerLostError(f"the peer is gone: {error.strerror}") from None
            if not received:
                raise PeerLostError("the peer closed the connection")
            if moved is not None:
                moved(received)
            _advance(left, received)
            turn_bytes = await self._yield_after(turn_bytes + received)

    async def finish_sending(self) -> None:
        """No more frames from us; returns once the peer has closed too, or after LINGER_S.

        Closing at once could reset the connection and take our last frame with it.
        """
        with contextlib.suppress(OSError, PeerLostError, TimeoutError):
            self._socket.shutdown(socket.SHUT_WR)
            scrap = bytearray(4096)
            async with asyncio.timeout(LINGER_S):
                while True:
                    await self.receive_into([memoryview(scrap)])

    async def pass_descriptors(self, descriptors: Sequence[int]) -> None:
        """Over a unix socket, after a frame that says so. They stay the caller's."""
        async with self._sending:
            while True:
                try:
                    socket.send_fds(self._socket, [b"\0"], descriptors)
                except (BlockingIOError, InterruptedError):
                    await self._until_ready(self._loop.add_writer, self._loop.remove_writer)
                except OSError as error:
                    raise PeerLostError(f"the peer is gone: {error.strerror}") from None
                else:
                    return

    async def receive_descriptors(self, most: int) -> list[int]:
        """What the peer passed, the caller's from now on; `most` are taken."""
        while True:
            try:
                byte, descriptors, _, _ = socket.recv_fds(
                    self._socket, 1, most, socket.MSG_CMSG_CLOEXEC
                )
            except (BlockingIOError, InterruptedError):
                await self._until_ready(self._loop.add_reader, self._loop.remove_reader)
            except OSError as error:
                raise PeerLostError(f"the peer is gone: {error.strerror}") from None
            else:
                if not byte:
                    raise PeerLostError("the peer closed the connection")
                return descriptors

    async def more_comes(self) -> bool:
        """Waits for the next byte, however long that takes. False: the peer has closed or is
        gone."""
        while True:
            try:
                return bool(self._socket.recv(1, socket.MSG_PEEK))
            except (BlockingIOError, InterruptedError):
                await self._until_ready(
                    self._loop.add_reader, self._loop.remove_reader, limited=False
                )
            except OSError:
                return False

    async def until_closed(self) -> None:
        """Returns once the peer has closed or is gone, however long that takes. ProtocolError if
        it says anything more."""
        if await self.more_comes():
            raise ProtocolError("the peer has no more to say on this connection")

    def close(self) -> None:
        self._socket.close()

    def close_after(self, task: "asyncio.Task[Any]") -> None:
        """The task owns the stream. A `finally` inside it would not do: a task that is cancelled
        before its first turn never enters it."""
        task.add_done_callback(lambda _: self.close())

    async def _receive_head(self) -> tuple[Prefix, bytearray]:
        head = bytearray(PREFIX_BYTES)
        await self.receive_into([memoryview(head)])
        prefix = decode_prefix(head)
        if prefix.sequence != self._num_received:
            raise CorruptPieceError("a frame is missing, doubled or out of turn")
        self._num_received += 1
        if prefix.header_bytes > self.max_header_bytes:
            raise CorruptPieceError(f"a header of {prefix.header_bytes} bytes is over the limit")
        header = bytearray(prefix.header_bytes)
        await self.receive_into([memoryview(header)])
        return prefix, header

    def _head(self, frame: Frame, payload_bytes: int) -> memoryview:
        head = encode(frame, self._num_sent, payload_bytes)
        self._num_sent += 1
        return memoryview(head)

    async def _send_views(self, views: list[memoryview], moved: Moved | None = None) -> None:
        left = [view for view in reversed(views) if len(view)]
        turn_bytes = 0
        while left:
            try:
                sent = self._socket.sendmsg(_next_turn(left))
            except (BlockingIOError, InterruptedError):
                turn_bytes = 0
                await self._until_ready(self._loop.add_writer, self._loop.remove_writer)
                continue
            except OSError as error:
                raise PeerLostError(f"the peer is gone: {error.strerror}") from None
            if moved is not None:
                moved(sent)
            _advance(left, sent)
            turn_bytes = await self._yield_after(turn_bytes + sent)

    async def _yield_after(self, turn_bytes: int) -> int:
        if turn_bytes < _TURN_BYTES:
            return turn_bytes
        await asyncio.sleep(0)
        return 0

    async def _until_ready(
        self,
        add: Callable[..., Any],
        remove: Callable[[socket.socket], Any],
        *,
        limited: bool = True,
    ) -> None:
        ready: asyncio.Future[None] = self._loop.create_future()
        add(self._socket, _wake, ready)
        try:
            async with asyncio.timeout(self._timeout_s if limited else None):
                await ready
        except TimeoutError:
            raise PeerLostError(f"the peer made no progress for {self._timeout_s:g} s") from None
        finally:
            remove(self._socket)


def _wake(ready: "asyncio.Future[None]") -> None:
    if not ready.done():
        ready.set_result(None)


def _next_turn(left: list[memoryview]) -> list[memoryview]:
    """What one system call may move of `left`, which is kept in reverse order."""
    turn: list[memoryview] = []
    room = _TURN_BYTES
    for view in left[: -_MAX_VIEWS - 1 : -1]:
        turn.append(view[:room])
        room -= len(turn[-1])
        if not room:
            break
    return turn


def _advance(left: list[memoryview], num_bytes: int) -> None:
    """Drop `num_bytes` from the front of `left`, which is kept in reverse order."""
    while num_bytes:
        view = left.pop()
        if len(view) > num_bytes:
            left.append(view[num_bytes:])
            return
        num_bytes -= len(view)
