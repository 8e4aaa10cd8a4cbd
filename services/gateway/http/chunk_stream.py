"""Writing to a streamed answer at once, without a task and without ASGI's messages.

Those cost more than all else that is done for a token. Headers, the end and every wait for a slow
client still go through ASGI; pieces come in between, as chunks of the same chunked body.

Each piece is handed to the kernel right away. By itself uvloop collects what all connections
write until the end of its turn, so the first stream of a frame would wait for the last one's text.
"""

from collections.abc import MutableMapping
from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from services.gateway.http.protocol import answer_in_progress


class ChunkStream:
    """The open body of one answer. Write only while nobody sends to it through ASGI."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._flow = cycle.flow
        self._transport = cycle.transport
        self._transport.set_write_buffer_limits(0)  # what is over it, uvloop writes at once

    @property
    def ready(self) -> bool:
        """The client is there and keeps up."""
        cycle = self._cycle
        gone = cycle.disconnected or cycle.response_complete or self._transport.is_closing()
        return not (self._flow.write_paused or gone)

    def write(self, piece: bytes) -> None:
        """One chunk; not empty, that would end the body."""
        self._transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))


def chunk_stream(scope: MutableMapping[str, Any]) -> ChunkStream | None:
    """For an answer whose headers were sent; None if its body is not chunked or nobody reads."""
    cycle = answer_in_progress(scope)
    if cycle is None or cycle.disconnected or cycle.transport.is_closing():
        return None
    return ChunkStream(cycle) if cycle.chunked_encoding else None
