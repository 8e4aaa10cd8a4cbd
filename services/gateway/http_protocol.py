"""uvicorn's HTTP protocol, taught to tell a half-closed client from one that left.

TCP shows both as the same end of input. uvicorn takes it for leaving, which drops the answer of
a client that only closed its sending side. Here the connection stays, and harmless bytes are
written until the answer is complete (interim `102 Processing` responses before it starts, event
comments inside a stream): a client that really left resets the connection, and then it is lost.
"""

import asyncio
import json
from collections.abc import MutableMapping
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_EVENT_STREAM = "baton.event_stream"
_ABORT = "baton.abort"
INTERIM = b"HTTP/1.1 102 Processing\r\n\r\n"
COMMENT_CHUNK = b"3\r\n:\n\n\r\n"
FIRST_PROBE_S = 0.05
LONGEST_PROBE_S = 1.0


def mark_event_stream(scope: MutableMapping[str, Any]) -> None:
    """The answer to this request is a chunked event stream, where a comment harms nobody."""
    scope[_EVENT_STREAM] = True


async def drop_connection(scope: MutableMapping[str, Any]) -> None:
    """Close the connection of this request now, whatever is still unsent.

    An orderly close would wait for a stalled client to read what is buffered."""
    abort = scope.get(_ABORT)
    if abort is not None:
        abort()
        await asyncio.sleep(0)  # lets the protocol learn that the connection is lost


class GatewayProtocol(HttpToolsProtocol):
    """One client connection."""

    _half_closed = False
    _probe: asyncio.TimerHandle | None = None

    def on_message_begin(self) -> None:
        super().on_message_begin()
        cast(dict[str, Any], self.scope)[_ABORT] = self.transport.abort

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """True keeps the connection open for writing."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete or cycle.more_body:
            return False
        if cycle.scope["http_version"] != "1.1":
            return False
        self._half_closed = True
        cycle.keep_alive = False
        self._send_probe(FIRST_PROBE_S)
        return True

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._half_closed and not self.transport.is_closing():
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._probe is not None:
            self._probe.cancel()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Broken framing: uvicorn's answer in the API's shape."""
        error = {
            "message": msg,
            "type": "invalid_request_error",
            "param": None,
            "code": "bad_request",
        }
        body = json.dumps({"error": error}).encode()
        head = (
            "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()

    def _send_probe(self, next_s: float) -> None:
        cycle = self.cycle
        if cycle.response_complete or self.transport.is_closing():
            return
        if not cycle.response_started:
            self.transport.write(INTERIM)
        elif cycle.scope.get(_EVENT_STREAM):
            self.transport.write(COMMENT_CHUNK)
        later_s = min(2 * next_s, LONGEST_PROBE_S)
        self._probe = self.loop.call_later(next_s, self._send_probe, later_s)
