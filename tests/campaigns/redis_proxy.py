"""A proxy between a cell and its Redis that delays, spoils and redirects."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

ODD_ANSWERS = (b"+WHAT?\r\n", b":-1\r\n", b"$5\r\nhello\r\n", b"*1\r\n$1\r\n?\r\n", b"-ODD odd\r\n")
"""each is well formed, and none is what was asked for"""
CHUNK_BYTES = 2**16


class RedisProxy:
    """Where the server is gone, its clients are hung up on."""

    def __init__(self, path: Path, target: Path) -> None:
        """`path`: its own socket; `target`: a server's."""
        self.path = path
        self.delay_s = 0.0
        """before what a client says is passed on, a piece after the other"""
        self.spoils = False
        """answers are not what was asked for"""
        self.num_spoiled = 0
        self._target = target
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._accept, self.path)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        await self.cut()

    async def redirect(self, target: Path) -> None:
        self._target = target
        await self.cut()

    async def cut(self) -> None:
        """Every connection."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            from_server, to_server = await asyncio.open_unix_connection(str(self._target))
        except OSError:
            writer.transport.abort()
            return
        copying = asyncio.gather(self._ask(reader, to_server), self._answer(from_server, writer))
        try:
            with suppress(OSError, EOFError, asyncio.CancelledError):
                await copying
        finally:
            copying.cancel()
            writer.transport.abort()
            to_server.transport.abort()

    async def _ask(self, reader: asyncio.StreamReader, server: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(CHUNK_BYTES):
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            server.write(chunk)
            await server.drain()
        raise EOFError

    async def _answer(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(CHUNK_BYTES):
            if self.spoils:
                chunk = ODD_ANSWERS[self.num_spoiled % len(ODD_ANSWERS)]
                self.num_spoiled += 1
            client.write(chunk)
            await client.drain()
        raise EOFError
