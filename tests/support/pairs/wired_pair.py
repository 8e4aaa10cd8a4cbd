"""A worker behind a wire, and a gateway that talks with it, as far as a wire can tell."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from typing import ClassVar

from services.cli.chaos.wires.wire import Wire
from shared.challenge import Channel
from shared.errors import ProtocolError
from tests.support.introduction import introduce

SECRET = "a secret of the cell's own"  # noqa: S105
BIG = random.Random(1).randbytes(3 * 2**20)  # noqa: S311
LIMIT_S = 5.0
SOON_S = 0.1


class Echo:
    """Stands in for a worker: a challenge, then every byte comes back."""

    def __init__(self, channel: Channel = "link") -> None:
        self._channel = channel
        self._writers: list[asyncio.StreamWriter] = []

    async def start(self) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def close(self) -> None:
        self._server.close()
        await closed(self._writers)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        with suppress(OSError, EOFError, ProtocolError):
            await introduce(reader, writer, self._channel, dials=False, cell_secret=SECRET)
            while piece := await reader.read(2**16):
                writer.write(piece)
                await writer.drain()
            writer.write_eof()
        writer.close()


class Talk:
    """Of a gateway with a worker, through a wire."""

    every: ClassVar[list["Talk"]] = []

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.every.append(self)

    @classmethod
    async def open(cls, wire: Wire) -> "Talk":
        talk = cls(*await asyncio.open_connection("127.0.0.1", wire.port))
        async with asyncio.timeout(LIMIT_S):
            await introduce(talk.reader, talk.writer, wire.channel, cell_secret=SECRET)
        return talk

    async def hear(self, num_bytes: int) -> bytes:
        async with asyncio.timeout(LIMIT_S):
            return await self.reader.readexactly(num_bytes)

    async def hear_soon(self, num_bytes: int) -> bytes | None:
        with suppress(TimeoutError):
            async with asyncio.timeout(SOON_S):
                return await self.reader.readexactly(num_bytes)
        return None

    async def says(self, said: bytes) -> bytes:
        self.writer.write(said)
        return await self.hear(len(said))

    async def chatter(self) -> None:
        """Until it is cancelled or hung up on."""
        with suppress(OSError, EOFError):
            while True:
                self.writer.write(b"ping")
                await asyncio.sleep(0.005)
                await self.reader.read(2**16)


@asynccontextmanager
async def wired(channel: Channel, worker: str = "decode-0") -> AsyncIterator[Wire]:
    echo = Echo(channel)
    made = Wire(worker, channel, await echo.start())
    await made.start()
    try:
        yield made
    finally:
        await made.close()
        await closed([talk.writer for talk in Talk.every])
        Talk.every.clear()
        await echo.close()


async def closed(writers: Iterable[asyncio.StreamWriter]) -> None:
    for writer in writers:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
