"""Sequences whose output has a grammar: compiled in a thread, so that no step waits for it.

    start   a sequence arrives; the thread compiles, and replays what its output has already
    hold    what the sequence wanted to do next waits until that is done
    ready   the sequences that can go on, or why they cannot

The step loop calls everything here; only `on_ready` is called from the thread.
"""

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

import torch

from shared.engine.scheduling.sequence import Sequence
from shared.errors import GrammarError, OffGrammarError
from shared.grammar.matcher import GrammarVocabulary, Matcher
from shared.protocol import Attempt

THREAD_NICENESS = 5
NUM_COMPILED = 64
"""grammars kept compiled; the one not used for longest goes first"""


class Grammars:
    """The grammars of one engine's sequences."""

    def __init__(self, vocabulary: GrammarVocabulary | None) -> None:
        """`vocabulary`: None where this machine cannot follow grammars."""
        self.vocabulary = vocabulary
        self._thread = ThreadPoolExecutor(1, "grammar", _give_way)
        self._compiled: OrderedDict[str, Matcher] = OrderedDict()
        """touched by the thread only; matchers at the start of an output, to be copied"""
        self._pending: dict[Attempt, Future[Matcher]] = {}
        self._held: dict[Attempt, Sequence] = {}
        """wait to be queued, or to be adopted with the token 1 they have got"""
        self.on_ready: Callable[[], None] = lambda: None
        """a grammar is done; runs in the thread"""

    def close(self) -> None:
        """Begin no grammar that waits for its turn; the process would not end before it."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    @property
    def any_ready(self) -> bool:
        """`ready` would return something."""
        return any(self._pending[attempt].done() for attempt in self._held)

    def start(self, sequence: Sequence) -> None:
        """Begin with the grammar of a sequence that just arrived."""
        output = sequence.token_ids[sequence.work.num_prompt_tokens :]
        future = self._thread.submit(self._matcher, sequence.work.sampling.grammar, output)
        self._pending[sequence.attempt] = future
        future.add_done_callback(lambda _: self.on_ready())

    def hold(self, sequence: Sequence) -> None:
        """Keep a started sequence until its grammar is ready."""
        self._held[sequence.attempt] = sequence

    def ready(self) -> list[tuple[Sequence, GrammarError | None]]:
        """Held sequences that have their grammar now, or why they cannot have it; each once."""
        done: list[tuple[Sequence, GrammarError | None]] = []
        for attempt, sequence in tuple(self._held.items()):
            if not self._pending[attempt].done():
                continue
            future = self._pending.pop(attempt)
            del self._held[attempt]
            error = future.exception()
            if error is None:
                sequence.grammar = future.result()
            elif not isinstance(error, GrammarError):
                raise error
            done.append((sequence, error))
        return done

    def forget(self, attempt: Attempt) -> None:
        """The sequence is gone."""
        self._held.pop(attempt, None)
        future = self._pending.pop(attempt, None)
        if future is not None:
            future.cancel()

    def renew(self, grammar: str) -> None:
        """An output could not go on by it. All outputs of a compiled grammar add to what is
        learnt of it, up to a limit of the library: the next one begins with nothing learnt."""
        self._thread.submit(self._compiled.pop, grammar, None)

    def _matcher(self, grammar: str, output: list[int]) -> Matcher:
        """In the thread. GrammarError if nothing can match it, OffGrammarError if only this output
        does not, or if this worker follows no grammars."""
        if self.vocabulary is None:
            raise OffGrammarError("this worker cannot follow grammars")
        if (compiled := self._compiled.get(grammar)) is not None:
            self._compiled.move_to_end(grammar)
            with suppress(GrammarError):  # perhaps for what other outputs taught it
                return _continued(compiled, output)
        compiled = self._compiled[grammar] = self.vocabulary.compile(grammar)
        if len(self._compiled) > NUM_COMPILED:
            self._compiled.popitem(last=False)
        return _continued(compiled, output)


def _continued(compiled: Matcher, output: list[int]) -> Matcher:
    """At the end of an output, where something can follow."""
    matcher = compiled.copy()
    matcher.replay(output)
    matcher.allowed()
    matcher.check()
    return matcher


def _give_way() -> None:
    """The step loop goes first where both want the same core."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), THREAD_NICENESS)


def allowed_tokens(sequence: Sequence) -> torch.Tensor | None:
    """i32[words] on the host, one bit per token that may come next; None: any."""
    if sequence.grammar is None:
        return None
    return torch.frombuffer(bytearray(sequence.grammar.allowed()), dtype=torch.int32)
