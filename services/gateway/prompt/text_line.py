"""Large texts wait here for one of two processes; a line that would wait too long is refused.

Two kinds of text have a line each. Huge ones are never in work in both processes at once, so a
prompt of usual length waits for others of its kind only.
"""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from services.gateway.prompt.text_process import TextProcess
from services.gateway.prompt.text_worker import Answer, Job, Refusal, Setup
from shared.errors import AttemptError, OverloadedError, ProtocolError, RequestError

log = logging.getLogger(__name__)

NUM_PROCESSES = 2
HUGE_BODY_BYTES = 2**20
"""from here on a body is huge; prompts that fit a long context are smaller"""
WAIT_LIMIT_S = 10.0
"""how long a text may have to wait for those before it"""
FIRST_S_PER_BYTE = 0.5e-6
"""what reading a body costs before the first was measured"""
COST_WEIGHT = 0.2
GRACE_S = 0.2
"""a job nobody waits for may still end within this; killing costs a start, some 0.4 s"""


class TextLine:
    """The text processes of one gateway and who waits for them."""

    def __init__(self, setup: Setup, time_limit_s: float) -> None:
        self._time_limit_s = time_limit_s
        self._processes = tuple(TextProcess(setup) for _ in range(NUM_PROCESSES))
        self._free: asyncio.Queue[TextProcess] = asyncio.Queue()
        for process in self._processes:
            self._free.put_nowait(process)
        self._large = _Kind(NUM_PROCESSES)
        self._huge = _Kind(NUM_PROCESSES - 1)

    async def start(self) -> None:
        """Start the processes ahead, so that the first text finds them loaded."""
        await asyncio.gather(*map(_start, self._processes))

    async def close(self) -> None:
        await asyncio.gather(*(process.kill() for process in self._processes))

    async def read(self, job: Job) -> Answer:
        """What the body asks for. RequestError if it is wrong or takes too long, OverloadedError
        if too much waits before it. Cancel it when nobody wants the answer any more."""
        kind = self._huge if len(job.body) > HUGE_BODY_BYTES else self._large
        with self._waiting(kind, len(job.body)):
            async with kind.turns:
                process = await self._free.get()
                began_s = asyncio.get_running_loop().time()
                answer = await self._read_with(process, job)
                kind.note_cost(len(job.body), asyncio.get_running_loop().time() - began_s)
        if isinstance(answer, Refusal):
            raise answer.error()
        return answer

    @contextmanager
    def _waiting(self, kind: "_Kind", num_bytes: int) -> Iterator[None]:
        """Counts a text among those ahead of the next one."""
        wait_s = kind.bytes_ahead * kind.s_per_byte
        if wait_s > WAIT_LIMIT_S:
            text = f"too many long texts wait to be read, the last for {wait_s:.0f} s"
            raise OverloadedError(text, retry_after_s=wait_s, status=503)
        kind.bytes_ahead += num_bytes
        try:
            yield
        finally:
            kind.bytes_ahead -= num_bytes

    async def _read_with(self, process: TextProcess, job: Job) -> Answer | Refusal:
        asking = asyncio.ensure_future(process.ask(job))
        try:
            async with asyncio.timeout(self._time_limit_s):
                return await asyncio.shield(asking)
        except TimeoutError:
            log.warning("a body of %d bytes took too long to read", len(job.body))
            raise RequestError("this request takes too long to read", code="too_complex") from None
        except (OSError, EOFError, ProtocolError):
            log.warning("the text process ended over a body of %d bytes", len(job.body))
            raise AttemptError("internal error", code="internal_error") from None
        finally:
            await asyncio.shield(self._free_again(process, asking))

    async def _free_again(
        self, process: TextProcess, asking: "asyncio.Future[Answer | Refusal]"
    ) -> None:
        """Give a process back: as it is if its job ends soon, else a new one."""
        await asyncio.wait({asking}, timeout=GRACE_S)
        if not asking.done() or asking.exception() is not None:
            asking.cancel()
            await process.kill()
            await _start(process)
        self._free.put_nowait(process)


class _Kind:
    """Texts that share a line."""

    def __init__(self, at_once: int) -> None:
        self.turns = asyncio.Semaphore(at_once)
        self.bytes_ahead = 0
        """of those in work and in the line"""
        self.s_per_byte = FIRST_S_PER_BYTE
        """measured; a body's fixed cost is part of it, so each kind has its own"""

    def note_cost(self, num_bytes: int, took_s: float) -> None:
        """A text of so many bytes was read."""
        self.s_per_byte += COST_WEIGHT * (took_s / num_bytes - self.s_per_byte)


async def _start(process: TextProcess) -> None:
    """The first job starts it otherwise."""
    try:
        await process.start()
    except OSError as error:
        log.warning("no text process can be started: %s", error)
