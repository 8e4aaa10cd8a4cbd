"""KV blocks over TCP, staged in host memory: decode dials prefill once per attempt and pulls.

The bytes go from prefill's pool to the socket and from the socket to decode's pool; no other
copy, no torch. See `pull` for decode's end of the conversation and `session` for prefill's.
"""

import asyncio
import socket
from functools import partial

from shared.clock import Clock, SystemClock
from shared.errors import PeerLostError
from shared.kv.memory import KVMemory
from shared.loops import Loops
from shared.protocol import Attempt
from shared.transfer.blocks.progress import Progress
from shared.transfer.blocks.sent import SentBlocks, SentReads
from shared.transfer.digest_threads import DigestThreads
from shared.transfer.frame_stream import FrameStream
from shared.transfer.offers import Digester, OfferTable
from shared.transfer.pulls import Pulls, introduced
from shared.transfer.readers import Readers
from shared.transfer.session import Session
from shared.transfer.traffic import Traffic
from shared.transfer.transport import Offer, OnRelease, Pulled, PullRequest, TransferLimits


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
        digester: Digester | None = None,
        limits: TransferLimits | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`digester`: of blocks that are offered; default: threads of this process, which know no
        steps."""
        self._memory = memory
        self._incarnation = incarnation
        self._host, self._port = listen_at
        self._cell_secret = cell_secret
        self._limits = limits or TransferLimits()
        self._clock = clock or SystemClock()
        self.traffic = Traffic(self._clock)
        self._digests = DigestThreads(memory)
        digester = digester or self._digests
        self._table = OfferTable(memory, self._limits.lease_s, self._clock, digester)
        self._served = SentBlocks(memory, self.traffic)
        self._readers = Readers(cell_secret, self._stream, self._serve)
        self._pulls = Pulls(
            memory.layout,
            self._connect,
            self._reads,
            self.traffic,
            self._limits,
            self._clock,
        )
        self._listener: socket.socket | None = None
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
            await self._readers.close()
        finally:
            self._table.close()
            self._digests.close()
            if self._listener is not None:
                self._listener.close()
                self._listener = None

    async def _serve(self, stream: FrameStream) -> None:
        session = Session(
            stream, self._served, self._incarnation, self._table, self.traffic, self._limits
        )
        await session.run()

    def _reads(self, progress: Progress, stream: FrameStream) -> SentReads:
        return SentReads(progress, stream, self._digests, self.traffic, self._limits)

    async def _connect(self, source: str) -> FrameStream:
        return await introduced(self._stream(await self._dial(source)), self._cell_secret)

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

    def _stream(self, sock: socket.socket) -> FrameStream:
        return FrameStream(sock, self._limits.progress_timeout_s)
