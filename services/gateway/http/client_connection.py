"""The client's side of one request: gone, stalled, or reading."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from starlette.types import Message, Receive, Send

logger = logging.getLogger(__name__)

CHECKS_PER_LIMIT = 4
T = TypeVar("T")


class ClientGoneError(Exception):
    """The client closed its connection or stopped reading; nobody wants the answer."""


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns; cancels it and raises ClientGoneError once the client has left. The
    body of its request must have been read."""
    return await _unless(_until_disconnect(receive), work)


class ClientConnection:
    """Runs work for a client and gives it up when the client does.

    A `send` that the client's slowness blocks for `slow_reader_s` counts as leaving. What the
    client has not read meanwhile stays in the generation, which joins it into one delta.
    """

    def __init__(
        self,
        receive: Receive,
        send: Send,
        slow_reader_s: float,
        on_gone: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_gone()`: the connection has ended, which the work hears some turns of the loop
        later. Where hundreds leave at once, what it starts goes before their clean-up."""
        self._receive = receive
        self._send = send
        self._slow_reader_s = slow_reader_s
        self._on_gone = on_gone
        self._send_since_s: float | None = None
        self._now_s = asyncio.get_running_loop().time

    async def send(self, message: Message) -> None:
        self._send_since_s = self._now_s()
        await self._send(message)
        self._send_since_s = None

    async def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Await `work`; cancel it and raise ClientGoneError once the client has left.

        `work` cleans up in its own `finally`; this returns only after it has ended."""
        await _unless(self._until_gone(), work)

    async def _until_gone(self) -> None:
        listening = asyncio.ensure_future(self._listen())
        try:
            while not listening.done():
                await asyncio.wait({listening}, timeout=self._slow_reader_s / CHECKS_PER_LIMIT)
                if self._stalled():
                    return
        finally:
            listening.cancel()

    async def _listen(self) -> None:
        await _until_disconnect(self._receive)
        try:
            self._on_gone()
        except Exception:  # the work is cancelled all the same
            logger.exception("the end of a connection was not told")

    def _stalled(self) -> bool:
        since_s = self._send_since_s
        return since_s is not None and self._now_s() - since_s >= self._slow_reader_s


async def _unless(gone: Coroutine[Any, Any, None], work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns; ClientGoneError, and `work` cancelled, if `gone` ends first."""
    working, watching = asyncio.ensure_future(work), asyncio.ensure_future(gone)
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGoneError
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _until_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
