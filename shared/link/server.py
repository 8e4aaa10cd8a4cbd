"""The worker's end: accept gateways, exchange HELLO, then messages both ways."""

import asyncio
import logging
from collections.abc import Callable

from shared.errors import ProtocolError
from shared.link.connection import Connection
from shared.protocol import VERSION, Hello, Message

logger = logging.getLogger(__name__)

HELLO_TIMEOUT_S = 5.0


class Peer:
    """A connected gateway."""

    def __init__(self, connection: Connection, hello: Hello) -> None:
        self._connection = connection
        self.hello = hello

    @property
    def inc(self) -> str:
        """The gateway's incarnation."""
        return self.hello.inc

    @property
    def closed(self) -> bool:
        return self._connection.closed

    def send(self, message: Message) -> None:
        """Queue one message; does nothing once closed. Never blocks."""
        self._connection.send(message)


class LinkServer:
    """Listens for gateways. Callbacks run on the event loop.

    `hello()` is asked at each connection, so that it can carry the current load. A peer of
    another version or pool is hung up on before `on_open`.
    """

    def __init__(
        self,
        hello: Callable[[], Hello],
        on_message: Callable[[Peer, Message], None],
        on_closed: Callable[[Peer], None],
        on_open: Callable[[Peer], None] | None = None,
    ) -> None:
        self._hello = hello
        self._on_message = on_message
        self._on_closed = on_closed
        self._on_open = on_open
        self._server: asyncio.Server | None = None
        self._peers: dict[Connection, Peer | None] = {}
        self._hello_timers: dict[Connection, asyncio.TimerHandle] = {}

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port (port 0 picks one). OSError when it is taken."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: Connection(self._receive, self._lose, self._greet), host, port
        )
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    @property
    def peers(self) -> list[Peer]:
        """Gateways that said HELLO."""
        return [peer for peer in self._peers.values() if peer is not None]

    async def close(self) -> None:
        """Stop listening and hang up on everyone; what was sent is flushed."""
        if self._server is not None:
            self._server.close()
        connections = list(self._peers)
        for connection in connections:
            connection.close()
        for connection in connections:
            await connection.lost

    def _greet(self, connection: Connection) -> None:
        self._peers[connection] = None
        connection.send(self._hello())
        loop = asyncio.get_running_loop()
        self._hello_timers[connection] = loop.call_later(HELLO_TIMEOUT_S, connection.abort)

    def _receive(self, connection: Connection, message: Message) -> None:
        peer = self._peers[connection]
        if peer is not None:
            self._on_message(peer, message)
            return
        if not isinstance(message, Hello) or message.role != "gateway":
            raise ProtocolError("a gateway's first frame is HELLO")
        own = self._hello()
        if message.version != VERSION:
            raise ProtocolError(f"gateway speaks version {message.version}, this is {VERSION}")
        if message.pool != own.pool:
            raise ProtocolError("gateway serves another model or KV layout")
        self._hello_timers.pop(connection).cancel()
        peer = self._peers[connection] = Peer(connection, message)
        if self._on_open is not None:
            self._on_open(peer)

    def _lose(self, connection: Connection, error: Exception | None) -> None:
        timer = self._hello_timers.pop(connection, None)
        if timer is not None:
            timer.cancel()
        peer = self._peers.pop(connection, None)
        if peer is not None:
            logger.info("gateway link closed: %s", error or "end of stream")
            self._on_closed(peer)
