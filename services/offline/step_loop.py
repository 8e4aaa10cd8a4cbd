"""One engine, stepped by whoever waits for an answer."""

import itertools
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from services.offline.interrupts import held_back
from services.offline.live_choice import LiveChoice
from services.offline.prompt import Prompt
from shared.engine.engine import Engine
from shared.engine.handover.output import StepOutput
from shared.engine.scheduling.sequence import SequenceSpec
from shared.errors import AttemptError, BatonError, RequestError
from shared.protocol import Attempt, Work
from shared.text.tokenizer import TextTokenizer

WAITING_PER_RUNNING = 1
"""sequences that wait in the engine for each that may run: enough for its next steps, and few
enough that its queue stays short however many prompts there are"""
NEWS_LIMIT_S = 0.1


class StepLoop:
    """Threads take turns, step by step; choices of all of them share the steps. Between two calls
    the engine is whole: Ctrl-C waits for the end of one."""

    def __init__(
        self,
        engine: Engine,
        num_running: int,
        tokenizer: TextTokenizer,
        block_size: int,
        hash_root: bytes,
    ) -> None:
        """`num_running`: sequences that the engine runs at once. `hash_root`: parent of each
        prompt's first block, 32 bytes."""
        self._engine: Engine | None = engine
        self._tokenizer = tokenizer
        self._block_size = block_size
        self._hash_root = hash_root
        self._most = num_running * (1 + WAITING_PER_RUNNING)
        self._lives: dict[Attempt, LiveChoice] = {}
        """choices that the engine has, by their attempts"""
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._news = threading.Event()
        engine.grammars.on_ready = self._news.set
        self._broken = ""
        """why this engine computes nothing any more"""

    @property
    def has_room(self) -> bool:
        """One more choice would be computed soon."""
        return len(self._lives) < self._most

    def choice(self, prompt: Prompt, index: int) -> LiveChoice:
        """One that the engine knows nothing of yet."""
        attempt = Attempt(f"offline-{next(self._numbers)}", 0)
        return LiveChoice(prompt, index, attempt, self._tokenizer)

    def begin(self, live: LiveChoice) -> None:
        """Queue a choice. BatonError once the engine is closed, or broken."""
        work = Work(
            attempt=live.attempt,
            token_ids=live.prompt.token_ids,
            num_prompt_tokens=len(live.prompt.token_ids),
            hash_root=self._hash_root,
            sampling=live.sampling,
            prompt_logprobs=live.prompt.prompt_logprobs if live.index == 0 else -1,
        )
        spec = SequenceSpec.of(work, self._block_size, "full", "agg")
        with self._turn() as engine:
            self._lives[live.attempt] = live
            engine.add(spec)

    def step(self, waited: Iterable[LiveChoice]) -> None:
        """One step, unless one of these has ended meanwhile, in another thread's."""
        with self._turn() as engine:
            if any(live.ended for live in waited):
                return
            if not engine.has_work:  # grammars compile
                self._news.wait(NEWS_LIMIT_S)
            self._news.clear()
            try:
                self._deliver(engine, engine.step())
            except Exception as error:
                raise self._given_up(engine, error) from error

    def drop(self, lives: Iterable[LiveChoice]) -> None:
        """Those of these that the engine has, whatever it does for them, are gone and their blocks
        free; fine where the engine is closed."""
        with held_back(), self._lock:
            if self._engine is not None:
                self._abort(self._engine, lives)

    def close(self) -> Engine | None:
        """The engine, at the first call; nothing is computed after it."""
        with held_back(), self._lock:
            engine, self._engine = self._engine, None
            self._lives.clear()
            return engine

    @contextmanager
    def _turn(self) -> Iterator[Engine]:
        with held_back(), self._lock:
            if self._engine is None:
                raise BatonError("this LLM is closed; make a new one")
            if self._broken:
                raise BatonError(
                    f"the engine failed ({self._broken}); close this LLM, make a new one"
                )
            yield self._engine

    def _deliver(self, engine: Engine, output: StepOutput) -> None:
        for attempt, num_cached_tokens in output.started:
            self._lives[attempt].num_cached_tokens = num_cached_tokens
        for attempt, problem in output.failed:
            code = "grammar_failed"
            self._lives.pop(attempt).error = AttemptError(f"it failed: {problem}", code=code)
        for attempt, problem in output.refused:
            self._lives.pop(attempt).error = RequestError(problem, code="invalid_schema")
        for attempt, piece in output.scored:
            self._lives[attempt].scored.append(piece)
        for run in output.tokens:
            live = self._lives[run.attempt]
            live.push(run)
            if live.stopped or run.finish_reason is not None:
                del self._lives[run.attempt]
            if live.stopped:
                engine.abort(run.attempt)

    def _abort(self, engine: Engine, lives: Iterable[LiveChoice]) -> None:
        for live in lives:
            if self._lives.pop(live.attempt, None) is not None:
                engine.abort(live.attempt)
        while not self._lives and engine.has_work:
            engine.step()  # what was in flight ends, or its blocks would not be free

    def _given_up(self, engine: Engine, error: Exception) -> BatonError:
        """A step failed: nobody's answer goes on, for this reason. If the engine is not empty after
        that it is not used again."""
        lives = tuple(self._lives.values())
        said = error if isinstance(error, BatonError) else BatonError(f"a step failed: {error}")
        for live in lives:
            live.error = said
        try:
            self._abort(engine, lives)
            whole = not engine.has_work and engine.load().held == 0
        except Exception:  # noqa: BLE001 it is broken then, and `error` says more
            whole = False
        self._broken = "" if whole else str(error) or type(error).__name__
        return said
