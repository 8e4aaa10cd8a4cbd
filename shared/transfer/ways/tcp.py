"""KV blocks over TCP: decode dials prefill once per attempt and pulls.

See `pull` for decode's end of the conversation and `session` for prefill's, `blocks.payloads` for
where the bytes go.
"""

import asyncio
import socket

from shared.errors import PeerLostError
from shared.kv.memory import KVMemory
from shared.transfer.blocks.payloads import HostPayloads, Payloads
from shared.transfer.blocks.progress import Progress, Served
from shared.transfer.blocks.sent import SentBlocks, SentReads
from shared.transfer.digest_threads import DigestThreads
from shared.transfer.frame_stream import FrameStream
from shared.transfer.offers import Digester, OfferTable
from shared.transfer.socket_transport import SocketTransport
from shared.transfer.terms import Terms
from shared.transfer.ways.way import OneWay
from shared.transfer_address import NOWHERE, TransferAddress


class PortListener:
    """Keeps the promise of `Listener`; serves whoever connects to its port."""

    def __init__(self, served: Served, listen_at: tuple[str, int]) -> None:
        self.served = served
        self._host, self._port = listen_at
        self._socket: socket.socket | None = None

    @property
    def address(self) -> TransferAddress:
        """host:port, as given and bound."""
        if self._socket is None:
            return NOWHERE
        host = f"[{self._host}]" if ":" in self._host else self._host
        return TransferAddress(port=f"{host}:{self._port}")

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

    name = SentReads.name

    def __init__(self, memory: KVMemory, payloads: Payloads, terms: Terms) -> None:
        """`payloads`: of this memory; closed with the way."""
        self._memory = memory
        self._payloads = payloads
        self._terms = terms

    async def connect(self, source: TransferAddress) -> FrameStream:
        return await self._terms.introduce(await dial(source, self._terms))

    def reads(self, progress: Progress, stream: FrameStream) -> SentReads:
        terms = self._terms
        return SentReads(
            progress, stream, self._memory, self._payloads, terms.traffic, terms.limits
        )

    async def close(self) -> None:
        self._payloads.close()


async def dial(source: TransferAddress, terms: Terms) -> socket.socket:
    """Connected to the source's port. PeerLostError if it cannot be."""
    if not source.port:
        raise PeerLostError("the source cannot be reached: it listens at no port")
    host, _, port = source.port.rpartition(":")
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(terms.limits.progress_timeout_s):
            found = await loop.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
            family, kind, protocol, _, place = found[0]
            sock = socket.socket(family, kind, protocol)
            try:
                sock.setblocking(False)
                await loop.sock_connect(sock, place)
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
    payloads: Payloads | None = None,
    terms: Terms | None = None,
) -> SocketTransport:
    """Between any two workers. `digester`: of blocks that are offered; default: threads of this
    process, which know no steps. `payloads`: default: of blocks in host memory."""
    terms = terms or Terms()
    if payloads is None or digester is None:
        digests = DigestThreads(memory)
        payloads, digester = payloads or HostPayloads(digests), digester or digests
    return SocketTransport(
        incarnation,
        OfferTable(memory, terms.limits.lease_s, terms.clock, digester),
        [PortListener(SentBlocks(memory.layout, payloads, terms.traffic), listen_at)],
        OneWay(TcpWay(memory, payloads, terms)),
        terms,
    )
