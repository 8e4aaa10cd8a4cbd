"""One process that reads large request bodies: started, asked, killed.

It can be killed, which no thread can, so a text that takes too long costs nobody else anything.
"""

import asyncio
import sys
from asyncio.subprocess import PIPE, Process

from services.gateway.prompt.text_worker import (
    LENGTH_BYTES,
    TEXT_CODEC,
    Answer,
    Job,
    Refusal,
    Setup,
)

WORKER_MODULE = "services.gateway.prompt.text_worker"


class TextProcess:
    """Takes one job at a time."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._process: Process | None = None

    async def start(self) -> None:
        """Begin to load the tokenizer, unless it runs; OSError if no process can be made."""
        if self._process is not None and self._process.returncode is None:
            return
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", WORKER_MODULE, stdin=PIPE, stdout=PIPE
        )
        await _send(self._process, TEXT_CODEC.encode(self._setup))

    async def ask(self, job: Job) -> Answer | Refusal:
        """The answer to one job. OSError, EOFError or ProtocolError if the process ended."""
        await self.start()
        process = self._process
        assert process is not None
        await _send(process, TEXT_CODEC.encode(job))
        stream = process.stdout
        assert stream is not None
        size = int.from_bytes(await stream.readexactly(LENGTH_BYTES), "big")
        answer: Answer | Refusal = TEXT_CODEC.decode(await stream.readexactly(size))
        return answer

    async def kill(self) -> None:
        """End it, whatever it does; the next job starts another."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _send(process: Process, frame: bytes) -> None:
    stream = process.stdin
    assert stream is not None
    stream.write(len(frame).to_bytes(LENGTH_BYTES, "big") + frame)
    await stream.drain()
