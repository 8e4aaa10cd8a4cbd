"""uvicorn's HTTP protocol, with limits, and able to tell a half-closed client from one that left.

**Limits.** A request that is not HTTP, too large or too slow to arrive (`HttpLimits`) is answered
in the API's shape and the connection closes: first for sending, and once the client has had time
to read, altogether. Answers to requests that came before on the same connection go first.

**Half-close.** TCP shows a client that closed its sending side and one that left as the same end
of input. uvicorn takes it for leaving, which drops the answer. Here the connection stays, and
harmless bytes are written until the answer is complete (interim `102 Processing` responses before
it starts, event comments inside a stream): a client that really left resets the connection, and
then it is lost.
"""

import asyncio
from collections.abc import MutableMapping
from typing import Any, Literal, cast

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from services.gateway.http.open_connections import PROBE_PATHS, OpenConnections, Purpose
from services.gateway.http.refusal import (
    NO_CONNECT,
    NO_HOST,
    NO_UPGRADE,
    OLD_VERSION,
    TOO_MANY_CONNECTIONS,
    HttpRefusal,
    broken,
    large_body,
    large_head,
    slow_body,
    slow_head,
)

_EVENT_STREAM = "baton.event_stream"
_CONNECTION = "baton.connection"
_BEGAN = "baton.began_s"
INTERIM = b"HTTP/1.1 102 Processing\r\n\r\n"
COMMENT_CHUNK = b"3\r\n:\n\n\r\n"
FIRST_PROBE_S = 0.05
LONGEST_PROBE_S = 1.0
LINGER_S = 5.0
"""after a refusal the client may take this long to read it"""
LINGER_BYTES = 8 * 2**20
"""and send this much more"""

Stage = Literal["idle", "head", "body"]
"""what of a request is being received"""


def mark_event_stream(scope: MutableMapping[str, Any]) -> None:
    """The answer to this request is a chunked event stream, where a comment harms nobody."""
    scope[_EVENT_STREAM] = True


def began_s(scope: MutableMapping[str, Any]) -> float:
    """When the first byte of this request arrived, on the event loop's clock."""
    began: float = scope[_BEGAN]
    return began


def body_is_unread(scope: MutableMapping[str, Any]) -> bool:
    """Part of this request's body is still to come."""
    cycle = answer_in_progress(scope)
    return cycle is not None and cycle.more_body


def answer_in_progress(scope: MutableMapping[str, Any]) -> RequestResponseCycle | None:
    """What is being answered on the connection of this request: the request itself, once its
    answer has begun."""
    connection: GatewayProtocol | None = scope.get(_CONNECTION)
    return None if connection is None else connection.answering


async def drop_connection(scope: MutableMapping[str, Any]) -> None:
    """Close the connection of this request now, whatever is still unsent.

    An orderly close would wait for a stalled client to read what is buffered."""
    connection: GatewayProtocol | None = scope.get(_CONNECTION)
    if connection is not None:
        connection.transport.abort()
        await asyncio.sleep(0)  # lets the protocol learn that the connection is lost


def end_unread(scope: MutableMapping[str, Any]) -> None:
    """The answer to this request is complete, and the rest of its body is not wanted."""
    connection: GatewayProtocol | None = scope.get(_CONNECTION)
    if connection is not None:
        connection.end_unread()


class _RefusedError(Exception):
    """Stops the parser at the end of the headers."""


class GatewayProtocol(HttpToolsProtocol):
    """One client connection."""

    def __init__(
        self,
        others: OpenConnections,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.purpose: Purpose = "any"
        self.url = b""  # uvicorn has none before the first request begins
        self._others = others
        self._limits = others.limits
        self._stage: Stage = "idle"
        self._num_bytes = 0
        """received in this stage"""
        self._chunk_bytes = 0
        """of the read being parsed, what may belong to the message it begins"""
        self._answering: RequestResponseCycle | None = None
        """whose answer is being written; the parser may be further (`cycle`)"""
        self._watched: Stage = "idle"
        self._deadline: asyncio.TimerHandle | None = None
        self._refusal: HttpRefusal | None = None
        self._refused = False
        self._half_closed = False
        self._probe: asyncio.TimerHandle | None = None
        self._stopping = False
        self._last_call: asyncio.TimerHandle | None = None

    # The connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        purpose = self._others.admit(len(self.connections))
        if purpose is None:
            self._refused = True
            transport.write(TOO_MANY_CONNECTIONS.to_bytes())
            transport.close()
            return
        self.purpose = purpose
        self._others.note_idle(self)
        self._watch()

    def give_way(self) -> None:
        """Another connection needs the place of this idle one."""
        self.transport.close()

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        self._num_bytes += len(data)
        if self._refused:
            if self._num_bytes > LINGER_BYTES:
                self.transport.close()
            return
        self._chunk_bytes = len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._refuse(self._refusal or broken(str(error)))
            return
        if self._stage == "head" and self._num_bytes > self._limits.header_bytes:
            self._refuse(large_head(self._limits))
        elif self._stage == "body" and self._num_bytes > self._limits.body_bytes:
            self._refuse(large_body(self._limits))
        else:
            self._watch()

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """True keeps the connection open for writing."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete or cycle.more_body or cycle.disconnected:
            return False
        if cycle.scope["http_version"] != "1.1":
            return False
        self._half_closed = True
        cycle.keep_alive = False
        self._send_probe(FIRST_PROBE_S)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._others.note_busy(self)
        for timer in (self._probe, self._deadline, self._last_call):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)
        if self._answering is not None and not self._answering.response_complete:
            self._answering.disconnected = True
            self._answering.message_event.set()

    @property
    def answering(self) -> RequestResponseCycle | None:
        """Whose answer is being written."""
        return self._answering

    def shutdown(self) -> None:
        """The server stops. Every answer that begins from now on says that it is the connection's
        last; a client that was not told so may send one more request."""
        self._stopping = True
        if self._is_answered():
            self._call_last()
        elif not self.cycle.response_started:
            super().shutdown()

    def _call_last(self) -> None:
        """For a moment only: the request may be on its way."""
        self._last_call = self.loop.call_later(self._limits.last_call_s, self._close_idle)

    def refuse_unfinished(self) -> None:
        """What is being received has had its time."""
        if not self._refused and self._receiving() != "idle":
            self._time_out()

    def _close_idle(self) -> None:
        if self._stage == "idle" and self._is_answered():
            self.transport.close()

    # What the parser finds

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._stage = "head"
        self._num_bytes = self._chunk_bytes
        scope = cast(dict[str, Any], self.scope)
        scope[_CONNECTION] = self
        scope[_BEGAN] = self.loop.time()

    def on_headers_complete(self) -> None:
        self._refusal = self._head_refusal() or self._place_refusal()
        if self._refusal is not None:
            raise _RefusedError
        self._others.note_busy(self)
        super().on_headers_complete()
        if self._stopping:
            self.cycle.keep_alive = False
        self._stage = "body"
        self._num_bytes = 0
        self.headers = []  # trailers end up here and are dropped

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._stage = "idle"
        self._chunk_bytes = 0

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            return
        self.transport.set_write_buffer_limits()  # a ChunkStream has changed them
        if self._half_closed and self._is_answered():
            self.transport.close()
        elif not self._refused:
            self._watch()
            if self._is_answered():
                self._others.note_idle(self)
                if self._stopping:
                    self._call_last()

    def _is_answered(self) -> bool:
        """Nothing that was asked on this connection waits for its answer."""
        return self._answering is None or self._answering.response_complete

    # Limits

    def _head_refusal(self) -> HttpRefusal | None:
        version = self.parser.get_http_version()
        if version not in ("1.1", "1.0"):
            return OLD_VERSION
        if self.parser.get_method() == b"CONNECT":
            return NO_CONNECT
        if self.parser.should_upgrade():
            return NO_UPGRADE
        if self._has_large_head():
            return large_head(self._limits)
        num_hosts = sum(name == b"host" for name, _ in self.headers)
        if num_hosts > 1 or (num_hosts == 0 and version == "1.1"):
            return NO_HOST
        return None

    def _place_refusal(self) -> HttpRefusal | None:
        """A place that is kept for probes is for nothing else."""
        may_ask = self.purpose == "any" or self.url.partition(b"?")[0] in PROBE_PATHS
        return None if may_ask else TOO_MANY_CONNECTIONS

    def _has_large_head(self) -> bool:
        if len(self.headers) > self._limits.num_headers:
            return True
        if self._num_bytes <= self._limits.header_bytes:
            return False
        # Part of the body may have been counted too.
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        return size > self._limits.header_bytes

    def _watch(self) -> None:
        """Set or lift the deadline of what is being received. No timer is needed where a request
        arrives in one piece."""
        receiving = self._receiving()
        if receiving == self._watched:
            return
        self._stop_watching()
        self._watched = receiving
        if receiving != "idle":
            limits = self._limits
            limit_s = limits.header_s if receiving == "head" else limits.body_s
            self._deadline = self.loop.call_later(limit_s, self._time_out)

    def _receiving(self) -> Stage:
        """What the client owes us now; nothing while it waits for an earlier answer."""
        if self._stage == "body":
            return "body" if self.cycle is self._answering else "idle"
        if not self._is_answered():
            return "idle"
        if self._stage == "idle" and self.timeout_keep_alive_task is not None:
            return "idle"
        return "head"

    def _stop_watching(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        self._watched = "idle"

    def _time_out(self) -> None:
        if self._stage == "idle":
            self.transport.close()
        elif self._stage == "head":
            self._refuse(slow_head(self._limits))
        else:
            self._refuse(slow_body(self._limits))

    def end_unread(self) -> None:
        """The current answer was sent completely; take nothing more."""
        assert self._answering is not None
        self._take_nothing_more()
        self._answering.disconnected = True  # for uvicorn: nothing else will be sent
        self._linger()

    def _take_nothing_more(self) -> None:
        self._refused = True
        self._num_bytes = 0
        self._stop_watching()

    def _refuse(self, refusal: HttpRefusal) -> None:
        """Take nothing more. Answer with `refusal`, unless an answer is on its way."""
        self._take_nothing_more()
        if self._stage == "body" and self._give_up(self.cycle):
            self._linger()
            return
        waiting = self.pipeline[0][0] if self.pipeline else self._answering
        if waiting is not None and not (waiting.response_complete or waiting.disconnected):
            waiting.keep_alive = False  # what was asked before is answered, then it closes
            return
        path = self.url.partition(b"?")[0].decode("latin-1")
        self.transport.write(refusal.to_bytes(path))
        self._linger()

    def _give_up(self, cycle: RequestResponseCycle) -> bool:
        """The body of `cycle` will not come. Whether its answer has begun already."""
        if self.pipeline and self.pipeline[0][0] is cycle:
            self.pipeline.popleft()
            return False
        cycle.disconnected = True
        cycle.message_event.set()
        return cycle.response_started

    def _linger(self) -> None:
        """Closing at once could destroy the answer before the client has read it."""
        if not self.transport.is_closing():
            self.flow.resume_reading()
            self.transport.write_eof()
            linger_s = min(LINGER_S, self._limits.last_call_s) if self._stopping else LINGER_S
            self._deadline = self.loop.call_later(linger_s, self.transport.close)

    # Half-closed clients

    def _send_probe(self, next_s: float) -> None:
        cycle = self._answering
        if cycle is None or cycle.response_complete or self.transport.is_closing():
            return
        if not cycle.response_started:
            self.transport.write(INTERIM)
        elif cycle.scope.get(_EVENT_STREAM):
            self.transport.write(COMMENT_CHUNK)
        later_s = min(2 * next_s, LONGEST_PROBE_S)
        self._probe = self.loop.call_later(next_s, self._send_probe, later_s)
