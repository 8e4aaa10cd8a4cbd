"""Runs the reading of request bodies off the event loop.

Small bodies in a thread; large ones in a process of their own that can be killed, because no
thread can be stopped while it tokenizes. The process is started with the first large body.
"""

import asyncio
import logging
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from services.gateway.prompt.grammar_check import GrammarCheck
from services.gateway.prompt.ignored_fields import IgnoredFields
from services.gateway.prompt.prompt_reader import PreparedRequest, PromptReader
from services.gateway.prompt.served_model import ServedModel
from services.gateway.prompt.text_worker import (
    LENGTH_BYTES,
    TEXT_CODEC,
    Answer,
    Job,
    Kind,
    Refusal,
    Setup,
    read_body,
)
from services.gateway.text.tokenizer import TextTokenizer
from shared.errors import AttemptError, ProtocolError, RequestError

log = logging.getLogger(__name__)

THREAD_BODY_BYTES = 16 * 1024
"""largest body that is read in a thread"""
NUM_THREADS = 2
TIME_LIMIT_S = 10.0
"""a body that takes longer is refused and its process killed; start of the process included"""
WORKER_MODULE = "services.gateway.prompt.text_worker"


class TextPool:
    """Text work of one gateway."""

    def __init__(
        self,
        directory: Path,
        model: ServedModel,
        *,
        hash_root: bytes,
        block_size: int,
        workers_limit: Callable[[], int | None] = lambda: None,
        time_limit_s: float = TIME_LIMIT_S,
    ) -> None:
        """Loads the tokenizer; ModelError if the checkpoint's text files are unusable.

        `workers_limit`: the longest sequence that the workers hold now, if any is known."""
        self._model = model
        self._workers_limit = workers_limit
        self._reader = PromptReader.load(directory, model, hash_root, block_size)
        self._setup = Setup(str(directory), model, hash_root, block_size, os.getpid())
        self._grammars = GrammarCheck(str(directory), model.vocab_size, model.eos_token_ids)
        self.ignored_fields = IgnoredFields()
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="text")
        self._time_limit_s = time_limit_s
        self._process: Process | None = None
        self._turn = asyncio.Lock()
        """large bodies take turns"""

    @property
    def tokenizer(self) -> TextTokenizer:
        return self._reader.tokenizer

    @property
    def can_chat(self) -> bool:
        return self._reader.can_chat

    @property
    def max_model_len(self) -> int:
        """Longest sequence, prompt and answer, that can be served now: the model's, or less
        where a worker's KV pool is smaller than that."""
        return min(self._model.max_model_len, self._workers_limit() or self._model.max_model_len)

    async def read(self, kind: Kind, body: bytes) -> Answer:
        """What the body asks for; RequestError if it is wrong, or has a grammar nothing matches."""
        answer = await self._read(Job(kind, body, self.max_model_len))
        self.ignored_fields.count(answer.ignored)
        if isinstance(answer, PreparedRequest):
            await self._grammars.check(answer.sampling.grammar, answer.grammar_param)
        return answer

    async def _read(self, job: Job) -> Answer:
        if len(job.body) <= THREAD_BODY_BYTES:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, read_body, self._reader, job)
        async with self._turn:
            return await self._read_apart(job)

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        await self._kill()
        await self._grammars.close()

    async def _read_apart(self, job: Job) -> Answer:
        answered = False
        try:
            async with asyncio.timeout(self._time_limit_s):
                answer = await self._exchange(job)
            answered = True
        except TimeoutError:
            log.warning("a body of %d bytes took too long to read", len(job.body))
            raise RequestError("this request takes too long to read", code="too_complex") from None
        except (OSError, EOFError, ProtocolError):
            log.warning("the text process ended over a body of %d bytes", len(job.body))
            raise AttemptError("internal error", code="internal_error") from None
        finally:
            if not answered:
                await self._kill()
        if isinstance(answer, Refusal):
            raise answer.error()
        return answer

    async def _exchange(self, job: Job) -> Answer | Refusal:
        if self._process is None:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", WORKER_MODULE, stdin=PIPE, stdout=PIPE
            )
            await _send(self._process, TEXT_CODEC.encode(self._setup))
        await _send(self._process, TEXT_CODEC.encode(job))
        stream = self._process.stdout
        assert stream is not None
        size = int.from_bytes(await stream.readexactly(LENGTH_BYTES), "big")
        answer: Answer | Refusal = TEXT_CODEC.decode(await stream.readexactly(size))
        return answer

    async def _kill(self) -> None:
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
