"""A worker that is asked for its part of a canary, as a gateway asks for its part of a request."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

from shared.challenge import OtherVersionError
from shared.errors import KVTransferError, PeerLostError
from shared.link.link import Link
from shared.protocol import (
    Assign,
    Fail,
    Handback,
    Hello,
    Message,
    Ping,
    Pong,
    Receive,
    Refuse,
)
from shared.worker.canary.peer import Peer

Kind = TypeVar("Kind", bound=Message)
ROOM_S = 2.0
"""of silence, and a worker is asked whether what it was given waits for room"""
WAITING = ("queued", "reserve")
"""stages of attempts that wait for blocks, or for a place in a step"""


class NoPartError(Exception):
    """The worker takes no part in hand-overs now, such as one that is full, which is no fault of
    anybody's."""


class AskedWorker:
    """One link, over which one attempt is asked for."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._heard: asyncio.Queue[Message | None] = asyncio.Queue()
        """None: it hung up"""
        self._link: Link

    @classmethod
    @asynccontextmanager
    async def linked(
        cls, peer: Peer, hello: Hello, cell_secret: str
    ) -> AsyncIterator["AskedWorker"]:
        """Until the end of the context, when the worker drops what it still has of the attempt.
        PeerLostError, ProtocolError or NoPartError if there is no such link."""
        worker = cls(peer.name)
        heard = worker._heard
        try:
            worker._link = await Link.dial(
                peer.host,
                peer.port,
                hello,
                lambda _, message: heard.put_nowait(message),
                lambda _: heard.put_nowait(None),
                cell_secret=cell_secret,
            )
        except OtherVersionError:
            raise NoPartError from None
        try:
            yield worker
        finally:
            await worker._link.close()

    @property
    def hello(self) -> Hello:
        return self._link.peer

    def ask(self, message: Assign | Receive) -> None:
        self._link.send(message)

    async def answer(self, kind: type[Kind]) -> Kind:
        """The next message of this kind. NoPartError if it is full; NoPartError, or KVTransferError
        with what it says, if it gives up instead."""
        while True:  # until it answers
            match await self._next():
                case kind() as message:
                    return message
                case Pong(stages=stages) if any(stages.get(stage) for stage in WAITING):
                    raise NoPartError
                case Refuse(reason="draining" | "no_room") | Handback(reason="draining"):
                    raise NoPartError
                case Refuse(reason=reason) | Handback(reason=reason):
                    raise PeerLostError(f"{self._name} takes no prompt ({reason})")
                case Fail(message=text):
                    raise KVTransferError(f"{self._name} fails ({text})")
                case None:
                    raise PeerLostError(f"{self._name} hung up")

    async def _next(self) -> Message | None:
        """What it says; after some silence it is asked how it is."""
        try:
            async with asyncio.timeout(ROOM_S):
                return await self._heard.get()
        except TimeoutError:
            self._link.send(Ping(0))
            return await self._heard.get()
