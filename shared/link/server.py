"""The worker's end: accept gateways, pass the challenge, exchange HELLO, then messages."""

import asyncio
import logging
from collections.abc import Callable

from shared.challenge import Challenge
from shared.errors import ProtocolError
from shared.link.connection import Connection
from shared.protocol import MAX_HELLO_BYTES, SPOKEN, WORKER_CODEC, Hello, Message

logger = logging.getLogger(__name__)

HELLO_TIMEOUT_S = 5.0
MAX_LINKS = 64
"""gateways at once; one more is hung up on"""
MAX_STRANGERS = 64
"""connections that have not said HELLO; one more ends the oldest, so strangers keep nobody out"""


class Peer:
    """A connected gateway."""

    def __init__(self, connection: Connection, hello: Hello) -> None:
        self._connection = connection
        self.hello = hello

    @property
    def incarnation(self) -> str:
        """The gateway's incarnation."""
        return self.hello.incarnation

    @property
    def closed(self) -> bool:
        return self._connection.closed

    def send(self, message: Message) -> None:
        """Queue one message; does nothing once closed. Never blocks."""
        self._connection.send(message)

    def close(self) -> None:
        """Send what is queued, then close."""
        self._connection.close()


class LinkServer:
    """Listens for gateways. Callbacks run on the event loop.

    `hello()` is asked at each connection, so that it can carry the current load. A peer with
    another cell secret or pool, without a common version, or that looks for another incarnation,
    is hung up on before `on_open`, which may refuse it too: with ProtocolError. A gateway that
    dials again loses its former link. `max_frame_bytes`: of a frame after HELLO.
    """

    def __init__(
        self,
        hello: Callable[[], Hello],
        on_message: Callable[[Peer, Message], None],
        on_closed: Callable[[Peer], None],
        on_open: Callable[[Peer], None] | None = None,
        *,
        cell_secret: str = "",
        max_frame_bytes: int = MAX_HELLO_BYTES,
    ) -> None:
        self._hello = hello
        self._on_message = on_message
        self._on_closed = on_closed
        self._on_open = on_open
        self._cell_secret = cell_secret
        self._max_frame_bytes = max_frame_bytes
        self._server: asyncio.Server | None = None
        self._peers: dict[Connection, Peer] = {}
        self._strangers: dict[Connection, asyncio.TimerHandle] = {}
        """connections without a HELLO yet, oldest first, and when each is cut"""

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port (port 0 picks one). OSError when it is taken."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._accept, host, port)
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    @property
    def peers(self) -> list[Peer]:
        """Gateways that said HELLO."""
        return list(self._peers.values())

    async def close(self) -> None:
        """Stop listening and hang up on everyone. Returns once gateways have read what was sent to
        them; cancelled, it waits for none."""
        if self._server is not None:
            self._server.close()
        for stranger in list(self._strangers):
            stranger.close()
        connections = [*self._peers, *self._strangers]
        for connection in self._peers:
            connection.finish()
        try:
            for connection in connections:
                await asyncio.shield(connection.lost)
        finally:
            for connection in connections:
                connection.abort()

    def _accept(self) -> Connection:
        challenge = Challenge(self._cell_secret, "link", SPOKEN, dials=False)
        connection = Connection(
            self._receive, self._lose, self._greet, WORKER_CODEC, challenge=challenge
        )
        connection.max_frame_bytes = MAX_HELLO_BYTES
        if len(self._strangers) >= MAX_STRANGERS:
            oldest = next(iter(self._strangers))
            self._strangers.pop(oldest).cancel()
            oldest.abort()
        loop = asyncio.get_running_loop()
        self._strangers[connection] = loop.call_later(HELLO_TIMEOUT_S, connection.abort)
        return connection

    def _greet(self, connection: Connection) -> None:
        connection.send(self._hello())

    def _receive(self, connection: Connection, message: Message) -> None:
        peer = self._peers.get(connection)
        if peer is not None:
            self._on_message(peer, message)
            return
        if not isinstance(message, Hello) or message.role != "gateway":
            raise ProtocolError("a gateway's first frame is HELLO")
        self._check(message)
        peer = Peer(connection, message)
        if self._on_open is not None:
            self._on_open(peer)
        self._strangers.pop(connection).cancel()
        for former in [
            known for known, other in self._peers.items() if other.incarnation == peer.incarnation
        ]:
            former.abort()
        self._peers[connection] = peer
        connection.max_frame_bytes = self._max_frame_bytes

    def _check(self, hello: Hello) -> None:
        own = self._hello()
        if hello.pool != own.pool:
            raise ProtocolError("gateway serves another model or KV layout")
        if hello.to != own.incarnation:
            raise ProtocolError(f"gateway looks for {hello.to[:80]!r}, this is {own.incarnation}")
        if sum(peer.incarnation != hello.incarnation for peer in self._peers.values()) >= MAX_LINKS:
            raise ProtocolError(f"{MAX_LINKS} gateways are linked already")

    def _lose(self, connection: Connection, error: Exception | None) -> None:
        timer = self._strangers.pop(connection, None)
        if timer is not None:
            timer.cancel()
        peer = self._peers.pop(connection, None)
        if peer is not None:
            logger.info("gateway link closed: %s", error or "end of stream")
            self._on_closed(peer)
