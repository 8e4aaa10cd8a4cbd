"""`GET /health` and `GET /ready` of a worker, for whoever starts and restarts it.

It answers these two and nothing else: no keep-alive, no word about the work. /health says that
the event loop turns and every background loop does, or which one does not; it is well while another
engine takes the place of one that ended. /ready says that the model is loaded, gateways have been
able to find this worker, KV has come here from a peer (`shared.worker.canary`), and it is not
draining, or which of these is not so; Redis may be away.
"""

import asyncio
from collections.abc import Callable

LIMIT_S = 2.0
"""a caller that has not asked by then is hung up on"""
MAX_REQUEST_BYTES = 4096
MAX_CALLERS = 32
REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 503: "Service Unavailable"}


class ProbeServer:
    """Listens between `start` and `close`."""

    def __init__(self, unready: Callable[[], str], trouble: Callable[[], str]) -> None:
        """`unready`: why it is not ready, empty when it is. `trouble`: which background loop fails,
        empty when none does."""
        self._unready = unready
        self._trouble = trouble
        self._server: asyncio.Server | None = None
        self._num_callers = 0

    @property
    def listens(self) -> bool:
        return self._server is not None

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port (0 picks one). OSError when it is taken."""
        self._server = await asyncio.start_server(self._serve, host, port, limit=MAX_REQUEST_BYTES)
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._num_callers += 1
        try:
            if self._num_callers <= MAX_CALLERS:
                async with asyncio.timeout(LIMIT_S):
                    head = await reader.readuntil(b"\r\n\r\n")
                    writer.write(_answer(*self._status(head)))
                    await writer.drain()
        except (OSError, EOFError, asyncio.LimitOverrunError):
            pass
        finally:
            self._num_callers -= 1
            writer.close()

    def _status(self, head: bytes) -> tuple[int, str]:
        """Status and body."""
        method, _, rest = head.partition(b"\r\n")[0].partition(b" ")
        path = rest.partition(b" ")[0]
        if method != b"GET":
            return 400, ""
        asked = {b"/health": self._trouble, b"/ready": self._unready}.get(path)
        if asked is None:
            return 404, ""
        problem = asked()
        return (503, problem) if problem else (200, "")


def _answer(status: int, text: str) -> bytes:
    body = text.encode()
    head = f"HTTP/1.1 {status} {REASONS[status]}\r\ncontent-length: {len(body)}\r\n"
    return head.encode() + b"connection: close\r\n\r\n" + body
