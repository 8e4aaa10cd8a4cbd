"""HTTP/1.1 as a load generator needs it: one request at a time on a kept connection, the body of
the answer handed on as it arrives, nothing copied twice.

Written for the cost of a small chunk: no task wakes up for it, the socket's callback runs
straight into the reader of events.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol, cast

MAX_HEAD_BYTES = 64 * 1024
_HEAD_END = b"\r\n\r\n"


class BrokenAnswerError(Exception):
    """The peer sent what is no HTTP answer, or hung up in the middle of one."""


class AnswerSink(Protocol):
    """Takes one answer. Called on the event loop."""

    def on_head(self, status: int, headers: dict[bytes, bytes]) -> None:
        """Names are lower case."""

    def on_body(self, piece: bytes) -> None:
        """Some bytes of the body; no framing in them."""


class ResponseParser:
    """Sans-I/O: bytes in, head and body out. One per answer."""

    def __init__(self, sink: AnswerSink) -> None:
        self._sink = sink
        self._buffer = b""
        self._step: Callable[[], bool] = self._head
        self._left = 0
        self.begun = False
        """a byte of the answer has come"""
        self.complete = False
        self.keep_alive = True
        self._until_close = False

    def feed(self, received: bytes) -> None:
        """BrokenAnswerError for what is no HTTP answer. Bytes behind the answer are an error."""
        self.begun = True
        self._buffer = self._buffer + received if self._buffer else received
        while not self.complete and self._step():
            pass
        if self.complete and self._buffer:
            raise BrokenAnswerError("bytes behind the answer")

    def end(self) -> None:
        """The peer closed."""
        if self._until_close:
            self.complete = True
        elif not self.complete:
            raise BrokenAnswerError("the peer hung up before the answer was complete")

    def _head(self) -> bool:
        head, mark, rest = self._buffer.partition(_HEAD_END)
        if not mark:
            if len(self._buffer) > MAX_HEAD_BYTES:
                raise BrokenAnswerError("a head without end")
            return False
        self._buffer = rest
        first, *lines = head.split(b"\r\n")
        words = first.split(b" ", 2)
        if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
            raise BrokenAnswerError("no HTTP/1.1 answer")
        status = int(words[1])
        if 100 <= status < 200:
            return True
        headers = {}
        for line in lines:
            name, _, value = line.partition(b":")
            headers[name.strip().lower()] = value.strip()
        self._frame(status, headers)
        self._sink.on_head(status, headers)
        return True

    def _frame(self, status: int, headers: dict[bytes, bytes]) -> None:
        self.keep_alive = headers.get(b"connection", b"").lower() != b"close"
        if headers.get(b"transfer-encoding", b"").lower() == b"chunked":
            self._step = self._chunk_size
        elif status in (204, 304):
            self.complete = True
        elif b"content-length" in headers:
            self._left = _decimal(headers[b"content-length"])
            self._step = self._sized
            self.complete = self._left == 0
        else:
            self._until_close, self.keep_alive = True, False
            self._step = self._rest

    def _sized(self) -> bool:
        self.complete = self._take() == 0
        return False

    def _rest(self) -> bool:
        self._left = len(self._buffer)
        self._take()
        return False

    def _chunk_size(self) -> bool:
        line, mark, rest = self._buffer.partition(b"\r\n")
        if not mark:
            return False
        try:
            self._left = int(line.partition(b";")[0], 16)
        except ValueError:
            raise BrokenAnswerError("a chunk without a size") from None
        self._buffer = rest
        self._step = self._chunk if self._left else self._trailer
        return True

    def _chunk(self) -> bool:
        if self._left and self._take():
            return False
        if len(self._buffer) < 2:
            return False
        if not self._buffer.startswith(b"\r\n"):
            raise BrokenAnswerError("a chunk longer than its size")
        self._buffer = self._buffer[2:]
        self._step = self._chunk_size
        return True

    def _trailer(self) -> bool:
        line, mark, rest = self._buffer.partition(b"\r\n")
        if not mark:
            return False
        self._buffer = rest
        self.complete = not line
        return True

    def _take(self) -> int:
        """Hands on what belongs to the body; returns how much of it is still to come."""
        piece = self._buffer[: self._left]
        self._buffer = self._buffer[self._left :]
        self._left -= len(piece)
        if piece:
            self._sink.on_body(piece)
        return self._left


class HttpConnection(asyncio.Protocol):
    """One connection; `exchange` again as long as `reusable`."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser: ResponseParser | None = None
        self._answered: asyncio.Future[None] | None = None

    @property
    def reusable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    async def exchange(self, request: bytes, sink: AnswerSink) -> None:
        """Returns when the answer is complete. OSError or BrokenAnswerError when it will not be;
        StaleConnectionError when a kept connection was gone before the first byte."""
        if self._transport is None or self._transport.is_closing():
            raise StaleConnectionError
        parser = self._parser = ResponseParser(sink)
        self._answered = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            await self._answered
        except (OSError, BrokenAnswerError):
            if parser.begun:
                raise
            raise StaleConnectionError from None
        finally:
            self._answered = self._parser = None
        if not parser.keep_alive:
            self.close()

    def close(self) -> None:
        """At once; an exchange under way is lost."""
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        parser = self._parser
        if parser is None:
            self.close()
            return
        try:
            parser.feed(data)
        except BrokenAnswerError as error:
            self._fail(error)
            self.close()
            return
        if parser.complete:
            self._succeed()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._parser is None:
            return
        try:
            self._parser.end()
        except BrokenAnswerError as error:
            self._fail(exc or error)
        else:
            self._succeed()

    def _succeed(self) -> None:
        if self._answered is not None and not self._answered.done():
            self._answered.set_result(None)

    def _fail(self, error: Exception) -> None:
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(error)


class StaleConnectionError(BrokenAnswerError):
    """Hung up on before the answer's first byte."""


def _decimal(value: bytes) -> int:
    if not value.isdigit():
        raise BrokenAnswerError("a content-length that is no number")
    return int(value)
