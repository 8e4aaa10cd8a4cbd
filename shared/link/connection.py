"""One TCP connection that carries length-prefixed frames, for either end of a link."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, cast

from shared.challenge import TIMEOUT_S, Challenge, ChallengeError
from shared.codec import Codec
from shared.errors import ProtocolError, UnknownMessageError
from shared.frames import LENGTH, framed, next_body
from shared.protocol import CODEC, MAX_FRAME_BYTES
from shared.repeats import Repeats
from shared.sockets import keep_responsive

logger = logging.getLogger(__name__)

MAX_UNSENT_BYTES = 64 * 2**20
"""a peer that reads nothing is cut before it costs more memory than this"""

_closed = Repeats()
"""of this process: a peer that dials again and again must not fill its log"""
_skipped = Repeats()
"""of this process: a newer release may say so once a step"""


class Connection(asyncio.Protocol):
    """Splits the byte stream into messages of `codec`. Callbacks run on the event loop.

    With a `challenge` both ends prove that they know the cell secret before anything else;
    `on_made` is called after it. A message of a kind that `codec` does not know is skipped.
    `on_message` may raise: ProtocolError closes the connection like a malformed frame, anything
    else too and is logged. `on_lost` is called exactly once, after the last message.
    """

    def __init__(
        self,
        on_message: Callable[["Connection", Any], None],
        on_lost: Callable[["Connection", Exception | None], None],
        on_made: Callable[["Connection"], None] | None = None,
        codec: Codec = CODEC,
        challenge: Challenge | None = None,
    ) -> None:
        self.max_frame_bytes = MAX_FRAME_BYTES
        self._codec = codec
        self._challenge = challenge
        self._challenge_timer: asyncio.TimerHandle | None = None
        self._on_message = on_message
        self._on_lost = on_lost
        self._on_made = on_made
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._failure: ProtocolError | None = None
        self._finishing = False
        self.lost = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        keep_responsive(transport.get_extra_info("socket"))
        if self._challenge is None:
            self._made()
            return
        self._transport.write(self._challenge.greeting)
        loop = asyncio.get_running_loop()
        self._challenge_timer = loop.call_later(TIMEOUT_S, self.abort)

    def data_received(self, data: bytes) -> None:
        if self._finishing:
            return
        self._buffer += data
        try:
            if self._challenge is None or self._passes(self._challenge):
                self._deliver()
        except ChallengeError as error:
            self._fail(error)
            assert self._transport is not None
            self._transport.write(error.answer)
            self.close()
        except ProtocolError as error:
            self._fail(error)
            self.abort()
        except Exception as error:
            logger.exception("link closed: a message could not be dealt with")
            self._failure = ProtocolError(f"{type(error).__name__} at a message")
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._challenge_timer is not None:
            self._challenge_timer.cancel()
        if not self.lost.done():
            self.lost.set_result(None)
        self._on_lost(self, self._failure or exc)

    @property
    def version(self) -> int:
        """Of the protocol, as the challenge settled it; 0 without one."""
        return self._challenge.version if self._challenge is not None else 0

    @property
    def closed(self) -> bool:
        return self._transport is None or self._finishing or self._transport.is_closing()

    def send(self, message: Any) -> None:
        """Queue one message; does nothing once closed. Never blocks."""
        if self._transport is None or self.closed:
            return
        self._transport.write(framed(self._codec.encode(message)))
        if self._transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            logger.warning("link closed: the peer stopped reading")
            self.abort()

    def close(self) -> None:
        """Send what is queued, then close."""
        if self._transport is not None:
            self._transport.close()

    def finish(self) -> None:
        """Send what is queued, and say that nothing follows. `lost` is done once the peer has
        closed, which has read everything then; what it says until then is not delivered. Closed at
        once, a connection that the peer still writes to takes what is not read yet with it."""
        if self._transport is not None and not self.closed:
            self._finishing = True
            self._transport.write_eof()

    def abort(self) -> None:
        """Close now, drop what is queued."""
        if self._transport is not None:
            self._transport.abort()

    def _made(self) -> None:
        if self._on_made is not None:
            self._on_made(self)

    def _fail(self, error: ProtocolError) -> None:
        if count := _closed.due(type(error).__name__):
            logger.warning("link closed (%d of this kind): %s", count, error)
        self._failure = error

    def _passes(self, challenge: Challenge) -> bool:
        """Whether frames may be read. What comes after a lost challenge is never looked at."""
        while not challenge.done and self._failure is None:
            if len(self._buffer) < challenge.num_expected:
                return False
            step = bytes(self._buffer[: challenge.num_expected])
            del self._buffer[: len(step)]
            assert self._transport is not None
            self._transport.write(challenge.receive(step))
        if self._challenge_timer is not None:
            self._challenge_timer.cancel()
            self._challenge_timer = None
            self._made()
        return self._failure is None

    def _deliver(self) -> None:
        buffer, start = self._buffer, 0
        while not self.closed:
            body = next_body(buffer, start, self.max_frame_bytes)
            if body is None:
                break
            start += LENGTH.size + len(body)
            try:
                message = self._codec.decode(body)
            except UnknownMessageError as error:
                _skip(error)
            else:
                self._on_message(self, message)
        if start:
            del buffer[:start]


def _skip(error: UnknownMessageError) -> None:
    if count := _skipped.due("message"):
        logger.info("a peer of a newer release? %s is skipped (%d so far)", error, count)
