"""Runs the reading of request bodies, most of it off the event loop.

The smallest bodies are read at once: a thread takes longer to wake and to be waited for, 0.15 ms of
a request's time to first token. They take half of the loop's time at most; the others, and what is
larger, are read in a thread. Large ones are read in processes that can be killed, because no thread
can be stopped while it tokenizes. Cancel a `read` when its client has left or its time is up.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from services.gateway.prompt.grammar_check import GrammarCheck
from services.gateway.prompt.ignored_fields import IgnoredFields
from services.gateway.prompt.prepared import PreparedRequest, TokenList
from services.gateway.prompt.prompt_reader import PromptReader
from services.gateway.prompt.served_model import ServedModel
from services.gateway.prompt.text_work.text_line import TextLine
from services.gateway.prompt.text_work.text_worker import (
    Answer,
    Job,
    Kind,
    ModelName,
    Reading,
    Setup,
    read_body,
)
from shared.kv.block_hash import BlockHashing
from shared.text.tokenizer import TextTokenizer

AT_ONCE_BODY_BYTES = 2 * 1024
"""largest body that is read on the loop; 0.1 to 0.6 ms"""
THREAD_BODY_BYTES = 16 * 1024
"""largest body that is read in a thread"""
NUM_THREADS = 2
TIME_LIMIT_S = 10.0
"""a body that takes longer is refused and its process killed; start of the process included"""


class TextPool:
    """Text work of one gateway."""

    def __init__(
        self,
        directory: Path,
        model: ServedModel,
        hashing: BlockHashing,
        *,
        workers_limit: Callable[[], int | None] = lambda: None,
        time_limit_s: float = TIME_LIMIT_S,
    ) -> None:
        """Loads the tokenizer; ModelError if the checkpoint's text files are unusable.

        `workers_limit`: the longest sequence that the workers hold now, if any is known."""
        self._model = model
        self._hashing = hashing
        self._workers_limit = workers_limit
        self._reader = PromptReader.load(directory, model, hashing.block_size)
        setup = Setup(str(directory), model, hashing.block_size)
        self._line = TextLine(setup, time_limit_s)
        self._grammars = GrammarCheck(str(directory), model.vocab_size, model.eos_token_ids)
        self.ignored_fields = IgnoredFields()
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="text")
        self._at_once_from_s = 0.0
        """the loop has its half of the time until then"""

    async def start(self) -> None:
        """Start the processes ahead; without it the first large body starts them."""
        await self._line.start()

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

    async def read(self, kind: Kind, body: bytes, tenant: str) -> Answer:
        """What the body asks for, its blocks named for the tenant. RequestError if it is wrong, or
        has a grammar nothing matches, OverloadedError if too many wait before it."""
        root = self._hashing.root(tenant)
        answer = await self._read(Job(kind, body, self.max_model_len, root))
        assert not isinstance(answer, ModelName)
        self.ignored_fields.count(answer.ignored)
        if isinstance(answer, PreparedRequest):
            await self._grammars.check(answer.sampling.grammar, answer.grammar_param)
        elif isinstance(answer, TokenList):
            await self._grammars.check(answer.grammar, answer.grammar_param)
        return answer

    async def named_model(self, body: bytes) -> str | None:
        """The model that the body names, if any. RequestError or OverloadedError as in `read`."""
        job = Job("name", body, 0, b"")
        is_small = len(body) <= THREAD_BODY_BYTES
        answer = read_body(self._reader, job) if is_small else await self._line.read(job)
        assert isinstance(answer, ModelName)
        return answer.name

    async def _read(self, job: Job) -> Reading:
        if len(job.body) > THREAD_BODY_BYTES:
            return await self._line.read(job)
        if len(job.body) <= AT_ONCE_BODY_BYTES and time.monotonic() >= self._at_once_from_s:
            return self._read_at_once(job)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, read_body, self._reader, job)

    def _read_at_once(self, job: Job) -> Reading:
        begin_s = time.monotonic()
        try:
            return read_body(self._reader, job)
        finally:
            end_s = time.monotonic()
            self._at_once_from_s = end_s + (end_s - begin_s)

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        await self._line.close()
        await self._grammars.close()
