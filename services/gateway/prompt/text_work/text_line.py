"""Large texts wait here for one of two processes; a line that would wait too long is refused.

Two kinds of text have a line each. Huge ones are never in work in both processes at once, so a
prompt of usual length waits for others of its kind only.
"""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from services.gateway.prompt.text_work.text_worker import TEXT_CODEC, Job, Reading, Refusal, Setup
from shared.child.asked_process import AskedProcess
from shared.errors import AttemptError, OverloadedError, ProtocolError, RequestError
from shared.tasks import Tasks

logger = logging.getLogger(__name__)

WORKER_MODULE = "services.gateway.prompt.text_work.text_worker"
NUM_PROCESSES = 2
HUGE_BODY_BYTES = 2**20
"""from here on a body is huge; prompts that fit a long context are smaller"""
WAIT_LIMIT_S = 10.0
"""how long a text may have to wait for those before it"""
FIRST_S_PER_BYTE = 0.5e-6
"""what reading a body costs before the first was measured"""
COST_WEIGHT = 0.2
CLOSE_GRACE_S = 5.0
"""a process that is just being started is waited for"""
GRACE_S = 0.2
"""a job nobody waits for may still end within this; killing costs a start, some 0.4 s"""


class TextLine:
    """The text processes of one gateway and the requests that wait for them."""

    def __init__(self, setup: Setup, time_limit_s: float) -> None:
        self._time_limit_s = time_limit_s
        self._processes = tuple(
            AskedProcess(WORKER_MODULE, TEXT_CODEC, setup) for _ in range(NUM_PROCESSES)
        )
        self._returning = Tasks()
        """processes on their way back to those that are free"""
        self._closed = False
        self._free: asyncio.Queue[AskedProcess] = asyncio.Queue()
        for process in self._processes:
            self._free.put_nowait(process)
        self._large = _Kind(NUM_PROCESSES)
        self._huge = _Kind(NUM_PROCESSES - 1)

    async def start(self) -> None:
        """Start the processes ahead, so that the first text finds them loaded."""
        await asyncio.gather(*map(_start, self._processes))

    async def close(self) -> None:
        """Returns once no process is left, also of those that are being replaced."""
        self._closed = True
        await self._kill_all()
        await self._returning.drain(CLOSE_GRACE_S)
        await self._kill_all()

    async def read(self, job: Job) -> Reading:
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

    async def _read_with(self, process: AskedProcess, job: Job) -> Reading | Refusal:
        asking = asyncio.ensure_future(_ask(process, job))
        try:
            async with asyncio.timeout(self._time_limit_s):
                return await asyncio.shield(asking)
        except TimeoutError:
            logger.warning("a body of %d bytes took too long to read", len(job.body))
            raise RequestError("this request takes too long to read", code="too_complex") from None
        except (OSError, EOFError, ProtocolError):
            logger.warning("the text process ended over a body of %d bytes", len(job.body))
            raise AttemptError("internal error", code="internal_error") from None
        finally:
            await asyncio.shield(self._returning.start(self._free_again(process, asking)))

    async def _free_again(
        self, process: AskedProcess, asking: "asyncio.Future[Reading | Refusal]"
    ) -> None:
        """Give a process back: as it is if its job ends soon, else a new one."""
        await asyncio.wait({asking}, timeout=GRACE_S)
        if not asking.done() or asking.exception() is not None:
            asking.cancel()
            await process.kill()
            if not self._closed:
                await _start(process)
        self._free.put_nowait(process)

    async def _kill_all(self) -> None:
        await asyncio.gather(*(process.kill() for process in self._processes))


class _Kind:
    """Texts that share a line."""

    def __init__(self, at_once: int) -> None:
        self.turns = asyncio.Semaphore(at_once)
        self.bytes_ahead = 0
        """of those in work and in the line"""
        self.s_per_byte = FIRST_S_PER_BYTE
        """measured; a body's fixed cost is part of it, so each kind has its own"""

    def note_cost(self, num_bytes: int, took_s: float) -> None:
        """A text of `num_bytes` was read."""
        self.s_per_byte += COST_WEIGHT * (took_s / num_bytes - self.s_per_byte)


async def _ask(process: AskedProcess, job: Job) -> Reading | Refusal:
    await process.start()
    answer: Reading | Refusal = await process.ask(job)
    return answer


async def _start(process: AskedProcess) -> None:
    """The first job starts it otherwise."""
    try:
        await process.start()
    except OSError as error:
        logger.warning("no text process can be started: %s", error)
