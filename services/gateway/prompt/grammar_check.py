"""Lets a grammar into the system only after it compiled once, in a process that can be killed.

Grammars that were checked are remembered, so a schema that comes again costs nothing.
"""

import asyncio
import logging
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import OrderedDict
from hashlib import sha256

from shared.errors import AttemptError, OverloadedError, ProtocolError, RequestError
from shared.grammar.checker import CHECK_CODEC, LENGTH_BYTES, CheckSetup, Trial, Verdict
from shared.grammar.matcher import LIBRARY, grammars_available
from shared.grammar.source import MAX_GRAMMAR_BYTES

log = logging.getLogger(__name__)

CHECKER_MODULE = "shared.grammar.checker"
TIME_LIMIT_S = 0.8
"""for one grammar, so that its refusal is there within a second"""
TURN_LIMIT_S = 10.0
"""how long a grammar waits for those before it; a client may ask again then"""
TOO_LONG = "it takes too long to compile"
TOO_LONG_FOR_S = 60.0
"""that one took too long may be the machine's fault: it counts for so long"""
START_LIMIT_S = 30.0
"""for the process to load the vocabulary"""
NUM_REMEMBERED = 1024


class GrammarCheck:
    """The checker process of one gateway; it is started with the first grammar."""

    def __init__(
        self,
        directory: str,
        vocab_size: int,
        eos_token_ids: tuple[int, ...],
        *,
        time_limit_s: float = TIME_LIMIT_S,
    ) -> None:
        self._setup = CheckSetup(directory, vocab_size, eos_token_ids, os.getpid())
        self._time_limit_s = time_limit_s
        self._process: Process | None = None
        self._turn = asyncio.Lock()
        """grammars take turns"""
        self._problems: OrderedDict[bytes, str] = OrderedDict()
        """digest of a grammar -> what is wrong with it, empty if nothing; oldest use first"""
        self._too_long: dict[bytes, float] = {}
        """digest of one that took too long -> when it may be tried again, monotonic seconds"""

    async def check(self, grammar: str, param: str) -> None:
        """RequestError, which names `param`, unless an engine can follow this grammar."""
        if not grammar:
            return
        size_bytes = len(grammar.encode())
        if size_bytes > MAX_GRAMMAR_BYTES:
            raise _refusal(f"{size_bytes} bytes; at most {MAX_GRAMMAR_BYTES} are taken", param)
        digest = sha256(grammar.encode()).digest()
        if digest not in self._problems:
            await self._take_turn()
            try:
                await self._decide(digest, grammar, param)
            finally:
                self._turn.release()
        self._problems.move_to_end(digest)
        if problem := self._problems[digest]:
            raise _refusal(problem, param)

    async def close(self) -> None:
        """Stop the process."""
        await self._kill()

    async def _take_turn(self) -> None:
        """OverloadedError if it does not come soon."""
        try:
            async with asyncio.timeout(TURN_LIMIT_S):
                await self._turn.acquire()
        except TimeoutError:
            text = "too many schemas wait to be compiled"
            raise OverloadedError(text, retry_after_s=TURN_LIMIT_S) from None

    async def _decide(self, digest: bytes, grammar: str, param: str) -> None:
        """Fill in self._problems; one that took too long is remembered for a while only."""
        if digest in self._problems:
            return
        now_s = asyncio.get_running_loop().time()
        self._too_long = {key: until for key, until in self._too_long.items() if until > now_s}
        if digest in self._too_long:
            raise _refusal(TOO_LONG, param)
        if not grammars_available():
            raise RequestError(
                f"{param}: not supported, this server has no {LIBRARY}",
                code="unsupported_parameter",
                param=param,
            )
        problem = await self._problem(grammar)
        if problem == TOO_LONG:
            self._too_long[digest] = now_s + TOO_LONG_FOR_S
            raise _refusal(problem, param)
        self._problems[digest] = problem
        if len(self._problems) > NUM_REMEMBERED:
            self._problems.popitem(last=False)

    async def _problem(self, grammar: str) -> str:
        answered = False
        process = await self._start()
        try:
            async with asyncio.timeout(self._time_limit_s):
                problem = await _ask(process, Trial(grammar))
            answered = True
        except TimeoutError:
            log.warning("a grammar of %d characters took too long to compile", len(grammar))
            problem = TOO_LONG
        except (OSError, EOFError, ProtocolError):
            log.warning("the checker process ended over a grammar of %d characters", len(grammar))
            problem = "it needs too much memory to compile"
        finally:
            if not answered:
                await self._kill()
        return problem

    async def _start(self) -> Process:
        """The running checker, or a new one."""
        if self._process is not None and self._process.returncode is None:
            return self._process
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", CHECKER_MODULE, stdin=PIPE, stdout=PIPE, stderr=DEVNULL
        )
        problem = "it did not start"
        try:
            async with asyncio.timeout(START_LIMIT_S):
                problem = await _ask(self._process, self._setup)
        except (OSError, EOFError, ProtocolError):
            problem = "it ended while starting"
        finally:
            if problem:
                await self._kill()
        if problem or self._process is None:
            log.error("no grammar can be checked: %s", problem)
            raise AttemptError("internal error", code="internal_error")
        return self._process

    async def _kill(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _ask(process: Process, message: CheckSetup | Trial) -> str:
    """What is wrong, by the checker's verdict. EOFError or OSError if it ended."""
    assert process.stdin is not None
    assert process.stdout is not None
    frame = CHECK_CODEC.encode(message)
    process.stdin.write(len(frame).to_bytes(LENGTH_BYTES, "big") + frame)
    await process.stdin.drain()
    size = int.from_bytes(await process.stdout.readexactly(LENGTH_BYTES), "big")
    verdict = CHECK_CODEC.decode(await process.stdout.readexactly(size))
    if not isinstance(verdict, Verdict):
        raise ProtocolError("the checker said something else")
    return verdict.problem


def _refusal(problem: str, param: str) -> RequestError:
    return RequestError(f"{param}: {problem}", code="invalid_schema", param=param)
