"""The gateway's end: dial a worker, pass the challenge, exchange HELLO, then messages both ways."""

import asyncio
from collections.abc import Callable

from shared.challenge import Challenge
from shared.errors import OtherPeerError, PeerLostError, ProtocolError
from shared.link.connection import Connection
from shared.protocol import MAX_FRAME_BYTES, MAX_HELLO_BYTES, SPOKEN, Hello, Message

DIAL_TIMEOUT_S = 5.0


class Link:
    """An open link to one worker incarnation.

    `on_message(link, message)` runs on the event loop for every frame after HELLO;
    `on_closed(link)` runs once. Both may call `send` and `close`.
    """

    def __init__(
        self,
        hello: Hello,
        on_message: Callable[["Link", Message], None],
        on_closed: Callable[["Link"], None],
    ) -> None:
        self._hello = hello
        self._on_message = on_message
        self._on_closed = on_closed
        self._connection: Connection | None = None
        self._peer: asyncio.Future[Hello] = asyncio.get_running_loop().create_future()

    @classmethod
    async def dial(
        cls,
        host: str,
        port: int,
        hello: Hello,
        on_message: Callable[["Link", Message], None],
        on_closed: Callable[["Link"], None],
        *,
        cell_secret: str = "",
    ) -> "Link":
        """Connect, hear the worker's HELLO and answer with `hello`, if the worker is `hello.to`.

        PeerLostError when nothing answers in time or hangs up first; OtherPeerError when another
        peer answers, which is then told nothing; ProtocolError when the peer has another cell
        secret, no version in common or is not a worker."""
        link = cls(hello, on_message, on_closed)
        challenge = Challenge(cell_secret, "link", SPOKEN, dials=True)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(DIAL_TIMEOUT_S):
                _, link._connection = await loop.create_connection(
                    lambda: Connection(link._receive, link._lose, link._made, challenge=challenge),
                    host,
                    port,
                )
                await asyncio.shield(link._peer)
        except (OSError, TimeoutError) as error:
            link._abandon()
            raise PeerLostError(f"worker at {host}:{port}: {error or 'no HELLO'}") from None
        except ProtocolError:
            link._abandon()
            raise
        return link

    @property
    def peer(self) -> Hello:
        """The worker's HELLO."""
        return self._peer.result()

    @property
    def version(self) -> int:
        """Of the protocol that is spoken here: what a newer one added is not understood there."""
        assert self._connection is not None
        return self._connection.version

    @property
    def closed(self) -> bool:
        return self._connection is None or self._connection.closed

    def send(self, message: Message) -> None:
        """Queue one message; does nothing once closed. Never blocks."""
        if self._connection is not None:
            self._connection.send(message)

    async def close(self) -> None:
        """Flush and close; returns when `on_closed` has run."""
        if self._connection is not None:
            self._connection.close()
            await self._connection.lost

    def _made(self, connection: Connection) -> None:
        connection.max_frame_bytes = MAX_HELLO_BYTES

    def _receive(self, connection: Connection, message: Message) -> None:
        if self._peer.done():
            self._on_message(self, message)
            return
        if not isinstance(message, Hello) or message.role == "gateway":
            raise ProtocolError("a worker's first frame is HELLO")
        if message.incarnation != self._hello.to:
            raise OtherPeerError(f"{message.incarnation} answers where {self._hello.to} was")
        connection.max_frame_bytes = MAX_FRAME_BYTES
        connection.send(self._hello)
        self._peer.set_result(message)

    def _lose(self, _: Connection, error: Exception | None) -> None:
        if not self._peer.done():
            known = isinstance(error, ProtocolError)
            self._peer.set_exception(error if known and error else OSError("closed before HELLO"))
            self._peer.exception()
        elif not self._peer.cancelled() and not self._peer.exception():
            self._on_closed(self)

    def _abandon(self) -> None:
        if not self._peer.done():
            self._peer.cancel()
        if self._connection is not None:
            self._connection.abort()
