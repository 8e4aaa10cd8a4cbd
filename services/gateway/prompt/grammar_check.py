"""Lets a grammar into the system only after it compiled once, in a process that can be killed.

Grammars that were checked are remembered, so a schema that comes again costs nothing.
"""

import asyncio
import logging
from collections import OrderedDict
from hashlib import sha256

from shared.child.asked_process import AskedProcess
from shared.errors import AttemptError, OverloadedError, ProtocolError, RequestError
from shared.grammar.checker import CHECK_CODEC, CheckSetup, Trial, Verdict
from shared.grammar.matcher import LIBRARY, grammars_available
from shared.grammar.refusal import check_size, grammar_refusal

logger = logging.getLogger(__name__)

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
        setup = CheckSetup(directory, vocab_size, eos_token_ids)
        self._checker = AskedProcess(CHECKER_MODULE, CHECK_CODEC, setup, quiet=True)
        self._time_limit_s = time_limit_s
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
        check_size(grammar, param)
        digest = sha256(grammar.encode()).digest()
        if digest not in self._problems:
            await self._take_turn()
            try:
                await self._decide(digest, grammar, param)
            finally:
                self._turn.release()
        self._problems.move_to_end(digest)
        if problem := self._problems[digest]:
            raise grammar_refusal(problem, param)

    async def close(self) -> None:
        """Stop the process."""
        await self._checker.kill()

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
            raise grammar_refusal(TOO_LONG, param)
        if not grammars_available():
            raise RequestError(
                f"{param}: not supported, this server has no {LIBRARY}",
                code="unsupported_parameter",
                param=param,
            )
        problem = await self._problem(grammar)
        if problem == TOO_LONG:
            self._too_long[digest] = now_s + TOO_LONG_FOR_S
            raise grammar_refusal(problem, param)
        self._problems[digest] = problem
        if len(self._problems) > NUM_REMEMBERED:
            self._problems.popitem(last=False)

    async def _problem(self, grammar: str) -> str:
        answered = False
        await self._start()
        try:
            async with asyncio.timeout(self._time_limit_s):
                problem = _problem_of(await self._checker.ask(Trial(grammar)))
            answered = True
        except TimeoutError:
            logger.warning("a grammar of %d characters took too long to compile", len(grammar))
            problem = TOO_LONG
        except (OSError, EOFError, ProtocolError):
            logger.warning(
                "the checker process ended over a grammar of %d characters", len(grammar)
            )
            problem = "it needs too much memory to compile"
        finally:
            if not answered:
                await self._checker.kill()
        return problem

    async def _start(self) -> None:
        """Have the checker run, its vocabulary loaded."""
        if self._checker.running:
            return
        problem = "it did not start"
        try:
            async with asyncio.timeout(START_LIMIT_S):
                await self._checker.start()
                problem = _problem_of(await self._checker.answer())
        except (OSError, EOFError, ProtocolError):
            problem = "it ended while starting"
        finally:
            if problem:
                await self._checker.kill()
        if problem:
            logger.error("no grammar can be checked: %s", problem)
            raise AttemptError("internal error", code="internal_error")


def _problem_of(verdict: object) -> str:
    if not isinstance(verdict, Verdict):
        raise ProtocolError("the checker said something else")
    return verdict.problem
