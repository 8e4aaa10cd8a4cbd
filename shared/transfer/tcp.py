"""KV blocks over TCP, staged in host memory: decode dials prefill once per attempt and pulls.

The bytes go from prefill's pool to the socket and from the socket to decode's pool; no other
copy, no torch. See `tcp_pull` for decode's end and `tcp_session` for prefill's.
"""

import asyncio
import logging
import socket
from collections.abc import Coroutine
from functools import partial
from typing import Any

from shared.challenge import Challenge, ChallengeError
from shared.clock import Clock, SystemClock
from shared.errors import PeerLostError
from shared.kv.memory import KVMemory
from shared.loops import Loops
from shared.protocol import VERSION, Attempt
from shared.repeats import Repeats
from shared.tasks import Tasks
from shared.transfer.digest_threads import DigestThreads
from shared.transfer.frame_stream import FrameStream
from shared.transfer.offers import OfferTable
from shared.transfer.tcp_pull import TcpPull
from shared.transfer.tcp_session import TcpSession
from shared.transfer.traffic import Traffic
from shared.transfer.transport import Offer, OnRelease, Pulled, PullRequest, TransferLimits

logger = logging.getLogger(__name__)

MAX_SESSIONS = 512
"""readers one worker serves at once; more are hung up on"""
MAX_STRANGERS = 64
"""of those, how many have not proved themselves; one more ends the oldest"""


class TcpTransport:
    """Keeps the promise of `shared.transfer.transport.KVTransport`."""

    name = "tcp"

    def __init__(
        self,
        memory: KVMemory,
        incarnation: str,
        *,
        listen_at: tuple[str, int] = ("127.0.0.1", 0),
        cell_secret: str = "",
        limits: TransferLimits | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._memory = memory
        self._incarnation = incarnation
        self._host, self._port = listen_at
        self._cell_secret = cell_secret
        self._limits = limits or TransferLimits()
        self._clock = clock or SystemClock()
        self.traffic = Traffic(self._clock)
        self._digests = DigestThreads(memory)
        self._table = OfferTable(memory, self._limits.lease_s, self._clock, self._digests)
        self._slots = asyncio.Semaphore(self._limits.max_pulls)
        self._listener: socket.socket | None = None
        self._sessions: set[asyncio.Task[None]] = set()
        self._strangers: dict[FrameStream, asyncio.Task[None]] = {}
        """sessions that have not passed the challenge, oldest first"""
        self._tasks = Tasks()
        self._repeats = Repeats()
        self.loops = Loops(self._clock)

    @property
    def on_release(self) -> OnRelease:
        return self._table.on_release

    @on_release.setter
    def on_release(self, on_release: OnRelease) -> None:
        self._table.on_release = on_release

    @property
    def address(self) -> str:
        """host:port, as given and bound; empty before `start`."""
        if self._listener is None:
            return ""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{host}:{self._port}"

    async def start(self) -> None:
        """Listen at `listen_at`; port 0 picks one. OSError when the port is taken."""
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        self._listener = socket.create_server((self._host, self._port), family=family)
        self._listener.setblocking(False)
        self._port = self._listener.getsockname()[1]
        self.loops.start("kv_accept", partial(self._accept, self._listener))
        self._table.start(self.loops)

    def offer(self, attempt: Attempt, ticket: str) -> Offer:
        return self._table.open(attempt, ticket)

    async def pull(self, request: PullRequest) -> Pulled:
        """Step 6: read while prefill computes, verify once, release."""
        return await self._tasks.run(self._pull(request))

    async def keep(self, request: PullRequest) -> None:
        await self._tasks.run(self._keep(request))

    async def close(self) -> None:
        try:
            await self.loops.close()
            await self._tasks.close()
        finally:
            self._table.close()
            self._digests.close()
            if self._listener is not None:
                self._listener.close()
                self._listener = None

    async def _pull(self, request: PullRequest) -> Pulled:
        stream = self._stream(await self._dial(request.source))
        pull = self._pull_over(stream, request)
        try:
            await self._introduce(stream)
            pulled = await pull.run()
        except BaseException:
            stream.close()
            raise
        self._start_over(stream, stream.finish_sending())
        return pulled

    async def _keep(self, request: PullRequest) -> None:
        await asyncio.sleep(self._limits.renew_every_s)
        try:
            stream = self._stream(await self._dial(request.source))
        except PeerLostError as error:
            logger.info("the lease of %s is not kept: %s", request.attempt, error)
            return
        try:
            await self._introduce(stream)
            await self._pull_over(stream, request).keep()
        except PeerLostError as error:
            logger.info("the lease of %s is not kept: %s", request.attempt, error)
        finally:
            stream.close()

    async def _introduce(self, stream: FrameStream) -> None:
        try:
            await stream.introduce(Challenge(self._cell_secret, "pull", VERSION, dials=True))
        except ChallengeError as error:
            raise PeerLostError(f"the source cannot be pulled from: {error}") from None

    def _pull_over(self, stream: FrameStream, request: PullRequest) -> TcpPull:
        return TcpPull(
            request,
            stream,
            self._digests,
            self._slots,
            self.traffic,
            self._limits,
            self._clock,
        )

    async def _dial(self, source: str) -> socket.socket:
        host, _, port = source.rpartition(":")
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._limits.progress_timeout_s):
                found = await loop.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
                family, kind, protocol, _, address = found[0]
                sock = socket.socket(family, kind, protocol)
                try:
                    sock.setblocking(False)
                    await loop.sock_connect(sock, address)
                except BaseException:
                    sock.close()
                    raise
        except OSError as error:
            raise PeerLostError(f"the source cannot be reached: {error}") from None
        return sock

    async def _accept(self, listener: socket.socket) -> None:
        """Nothing is awaited between a socket and its session. The loop's `sock_accept` loses
        the accepted socket when it is cancelled in the turn after the accept."""
        await _readable(listener)
        try:
            sock, _ = listener.accept()
        except (BlockingIOError, InterruptedError):
            return
        if len(self._sessions) >= MAX_SESSIONS:
            self._warn(f"{MAX_SESSIONS} are served already", "sessions")
            sock.close()
            return
        self._serve(sock)

    def _serve(self, sock: socket.socket) -> None:
        if len(self._strangers) >= MAX_STRANGERS:
            self._strangers.pop(next(iter(self._strangers))).cancel()
        stream = self._stream(sock)
        task = self._start_over(stream, self._converse(stream))
        self._strangers[stream] = task
        self._sessions.add(task)
        task.add_done_callback(self._sessions.discard)

    async def _converse(self, stream: FrameStream) -> None:
        """A session, once the reader has proved itself."""
        try:
            await stream.introduce(Challenge(self._cell_secret, "pull", VERSION, dials=False))
        except (ChallengeError, PeerLostError) as error:
            self._warn(str(error), type(error).__name__)
            if isinstance(error, ChallengeError):
                await stream.finish_sending()
            return
        finally:
            self._strangers.pop(stream, None)
        session = TcpSession(
            stream, self._memory, self._incarnation, self._table, self.traffic, self._limits
        )
        await session.run()

    def _warn(self, why: str, kind: str) -> None:
        """Once in a while: a reader that dials again and again must not fill the log."""
        if count := self._repeats.due(kind):
            logger.warning("a reader is hung up on (%d of this kind): %s", count, why)

    def _start_over(
        self, stream: FrameStream, work: Coroutine[Any, Any, None]
    ) -> "asyncio.Task[None]":
        """The task owns the stream. A `finally` in `work` would not do: a task that is cancelled
        before its first turn never enters it."""
        task = self._tasks.start(work)
        task.add_done_callback(lambda _: stream.close())
        return task

    def _stream(self, sock: socket.socket) -> FrameStream:
        return FrameStream(sock, self._limits.progress_timeout_s)


async def _readable(listener: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(listener, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(listener)
