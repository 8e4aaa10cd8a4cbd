"""Prefill's listening end: accepts readers, lets them prove themselves, and serves each."""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable

from shared.challenge import Challenge, ChallengeError
from shared.errors import PeerLostError
from shared.protocol import SPOKEN
from shared.repeats import Repeats
from shared.tasks import Tasks
from shared.transfer.blocks.progress import Served
from shared.transfer.frame_stream import FrameStream
from shared.transfer.terms import Terms
from shared.transfer.ways.way import Listener

logger = logging.getLogger(__name__)

MAX_SESSIONS = 512
"""readers one worker serves at once; more are hung up on"""
MAX_STRANGERS = 64
"""of those, how many have not proved themselves; one more ends the oldest"""


class Readers:
    """All readers of one transport."""

    def __init__(
        self,
        terms: Terms,
        serve: Callable[[FrameStream, Served], Awaitable[None]],
    ) -> None:
        """`serve`: a session with a reader that knows the cell secret."""
        self._terms = terms
        self._serve = serve
        self._sessions: set[asyncio.Task[None]] = set()
        self._strangers: dict[FrameStream, asyncio.Task[None]] = {}
        """sessions that have not passed the challenge, oldest first"""
        self._tasks = Tasks()
        self._repeats = Repeats()

    async def accept(self, at: socket.socket, listener: Listener) -> None:
        """The next reader at the listener's socket. Nothing is awaited between a socket and its
        session. The loop's `sock_accept` loses the accepted socket when it is cancelled in the
        turn after the accept.
        """
        await _readable(at)
        try:
            sock, _ = at.accept()
        except (BlockingIOError, InterruptedError):
            return
        objection = listener.objection(sock)
        if len(self._sessions) >= MAX_SESSIONS:
            objection = f"{MAX_SESSIONS} are served already"
        if objection:
            self._warn(objection, objection)
            sock.close()
            return
        self._begin(sock, listener.served)

    async def close(self) -> None:
        """Ends all sessions."""
        await self._tasks.close()

    def _begin(self, sock: socket.socket, served: Served) -> None:
        if len(self._strangers) >= MAX_STRANGERS:
            self._strangers.pop(next(iter(self._strangers))).cancel()
        stream = self._terms.stream(sock)
        task = self._tasks.start(self._converse(stream, served))
        stream.close_after(task)
        self._strangers[stream] = task
        self._sessions.add(task)
        task.add_done_callback(self._sessions.discard)

    async def _converse(self, stream: FrameStream, served: Served) -> None:
        """A session, once the reader has proved itself."""
        try:
            challenge = Challenge(self._terms.cell_secret, "pull", SPOKEN, dials=False)
            await stream.introduce(challenge)
        except (ChallengeError, PeerLostError) as error:
            self._warn(str(error), type(error).__name__)
            if isinstance(error, ChallengeError):
                await stream.finish_sending()
            return
        finally:
            self._strangers.pop(stream, None)
        await self._serve(stream, served)

    def _warn(self, why: str, kind: str) -> None:
        """Once in a while: a reader that dials again and again must not fill the log."""
        if count := self._repeats.due(kind):
            logger.warning("a reader is hung up on (%d of this kind): %s", count, why)


async def _readable(listener: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(listener, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(listener)
