"""Proxies on the wires of a real system: they count, cut open, hold back and damage."""

import asyncio
import struct
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from services.cli.cluster.ports import reserve_port
from shared.challenge import GREETING_BYTES, PROOF_BYTES
from shared.protocol import CODEC, Message
from tests.support.fakes.proxy import Direction, SeenFrame, TcpProxy, frames_of

T = TypeVar("T")
_LENGTH = struct.Struct(">I")


class KVProxy(TcpProxy):
    """On the transfer port of a prefill worker; for one pull at a time."""

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.recorded = {"to_server": bytearray(), "to_client": bytearray()}
        self.passed: Callable[[Direction], None] = lambda direction: None
        """called after each piece of bytes was taken, in the proxy's thread"""
        self.gate = asyncio.Event()
        """while clear, what prefill says is taken and not passed on"""
        self.gate.set()
        self.num_connections = 0

    def forget(self) -> None:
        """Begin a new record."""
        self.num_bytes = {"to_server": 0, "to_client": 0}
        self.recorded = {"to_server": bytearray(), "to_client": bytearray()}
        self.flip, self.num_flipped, self.num_connections = None, 0, 0

    def frames(self, direction: Direction) -> list[SeenFrame]:
        assert self.recorded is not None
        return frames_of(bytes(self.recorded[direction]))

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        await super()._accept(reader, writer)

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: Direction
    ) -> None:
        offset = 0
        try:
            while chunk := await reader.read(2**14):
                passed = self._pass(chunk, direction, offset)
                if self.num_flipped:
                    self.flip = None  # one bit of one connection: a retry gets through
                self.passed(direction)
                offset += len(chunk)
                if direction == "to_client":
                    await self.gate.wait()
                writer.write(passed)
                await writer.drain()
            writer.write_eof()
        except OSError:
            writer.transport.abort()


class LinkProxy:
    """On the link port of a worker; sees each frame that the worker sends."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self.before: Callable[[Message], Coroutine[Any, Any, None]] = pass_at_once
        """awaited before a frame is passed on; those behind it wait too"""

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        host, _, port = self._target.rpartition(":")
        try:
            from_worker, to_worker = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.transport.abort()
            return
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(_copy(reader, to_worker))
                both.create_task(self._copy_frames(from_worker, writer))
        except* (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()
            to_worker.transport.abort()

    async def _copy_frames(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        for num_bytes in (GREETING_BYTES, PROOF_BYTES):
            writer.write(await reader.readexactly(num_bytes))
        while True:
            head = await reader.readexactly(_LENGTH.size)
            body = await reader.readexactly(*_LENGTH.unpack(head))
            await self.before(CODEC.decode(body))
            writer.write(head + body)
            await writer.drain()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(2**16):
        writer.write(chunk)
        await writer.drain()
    raise ConnectionResetError


async def pass_at_once(message: Message) -> None:
    """Passes everything."""


class ProxyThread:
    """An event loop in a thread, for proxies that work while a test polls."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def call(self, function: Callable[[], object]) -> None:
        self._loop.call_soon_threadsafe(function)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@contextmanager
def free_port() -> Iterator[int]:
    """A port that nobody else gets while this is open; servers may listen on it."""
    with reserve_port("127.0.0.1", 0) as holder:
        yield holder.getsockname()[1]
