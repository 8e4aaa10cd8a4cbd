"""The parent's end: a process that is started, asked, and killed when it takes too long."""

import asyncio
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from typing import Any

from shared.codec import Codec
from shared.frames import LENGTH, framed


class AskedProcess:
    """Takes one question at a time. Whoever gives up waiting for an answer kills it."""

    def __init__(self, module: str, codec: Codec, setup: object, *, quiet: bool = False) -> None:
        """`module`: a program that reads `setup` and questions with `shared.child.asker`.
        `quiet`: what it writes to stderr is dropped."""
        self.module = module
        self._codec = codec
        self._setup = setup
        self._stderr = DEVNULL if quiet else None
        self._process: Process | None = None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Start it and send the setup, unless it runs. OSError if no process can be made."""
        if self.running:
            return
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", self.module, str(os.getpid())),
            stdin=PIPE,
            stdout=PIPE,
            stderr=self._stderr,
        )
        await self._send(self._setup)

    async def ask(self, question: object) -> Any:
        """The answer. OSError, EOFError or ProtocolError if the process ended; it is not started
        again, for a setup may have an answer too."""
        await self._send(question)
        return await self.answer()

    async def answer(self) -> Any:
        """What it says next; errors as those of `ask`."""
        if self._process is None:
            raise BrokenPipeError("the process has ended")
        assert self._process.stdout is not None
        stream = self._process.stdout
        (length,) = LENGTH.unpack(await stream.readexactly(LENGTH.size))
        return self._codec.decode(await stream.readexactly(length))

    async def kill(self) -> None:
        """End it, whatever it does; it can be started again."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            process.kill()
        await process.wait()

    async def _send(self, message: object) -> None:
        if self._process is None or self._process.returncode is not None:
            raise BrokenPipeError("the process has ended")
        assert self._process.stdin is not None
        self._process.stdin.write(framed(self._codec.encode(message)))
        await self._process.stdin.drain()
