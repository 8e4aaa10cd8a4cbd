"""KV blocks over TCP, staged in host memory: decode dials prefill once per attempt and pulls.

The bytes go from prefill's pool to the socket and from the socket to decode's pool; no other
copy, no torch. See `pull` for decode's end of the conversation and `session` for prefill's.
"""

import asyncio
import socket

from shared.errors import PeerLostError
from shared.kv.memory import KVMemory
from shared.transfer.blocks.progress import Progress
from shared.transfer.blocks.sent import SentBlocks, SentReads
from shared.transfer.digest_threads import DigestThreads
from shared.transfer.frame_stream import FrameStream
from shared.transfer.offers import Digester, OfferTable
from shared.transfer.socket_transport import SocketTransport
from shared.transfer.terms import Terms


class PortListener:
    """Keeps the promise of `Listener`; sends blocks to whoever connects to its port."""

    def __init__(self, served: SentBlocks, listen_at: tuple[str, int]) -> None:
        self.served = served
        self._host, self._port = listen_at
        self._socket: socket.socket | None = None

    @property
    def address(self) -> str:
        """host:port, as given and bound."""
        if self._socket is None:
            return ""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{host}:{self._port}"

    def open(self) -> socket.socket:
        """Port 0 picks one. OSError when the port is taken."""
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        self._socket = socket.create_server((self._host, self._port), family=family)
        self._socket.setblocking(False)
        self._port = self._socket.getsockname()[1]
        return self._socket

    def objection(self, sock: socket.socket) -> str:
        """None: the challenge decides."""
        del sock
        return ""

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class TcpWay:
    """Keeps the promise of `Way`; blocks are sent over the connection of their pull."""

    name = "tcp"

    def __init__(self, digests: DigestThreads, terms: Terms) -> None:
        """`digests`: of what arrives; closed with the way."""
        self._digests = digests
        self._terms = terms

    async def connect(self, source: str) -> FrameStream:
        return await self._terms.introduce(await self._dial(source))

    def reads(self, progress: Progress, stream: FrameStream) -> SentReads:
        terms = self._terms
        return SentReads(progress, stream, self._digests, terms.traffic, terms.limits)

    async def close(self) -> None:
        self._digests.close()

    async def _dial(self, source: str) -> socket.socket:
        host, _, port = source.rpartition(":")
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._terms.limits.progress_timeout_s):
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


def tcp_transport(
    memory: KVMemory,
    incarnation: str,
    *,
    listen_at: tuple[str, int] = ("127.0.0.1", 0),
    digester: Digester | None = None,
    terms: Terms | None = None,
) -> SocketTransport:
    """Between any two workers. `digester`: of blocks that are offered; default: threads of this
    process, which know no steps."""
    terms = terms or Terms()
    digests = DigestThreads(memory)
    return SocketTransport(
        incarnation,
        OfferTable(memory, terms.limits.lease_s, terms.clock, digester or digests),
        [PortListener(SentBlocks(memory, terms.traffic), listen_at)],
        TcpWay(digests, terms),
        terms,
    )
