"""What share of past answers would have come in time, had there been n decode workers.

A sequence takes KV blocks for its prompt and answer from the end of its prefill to its last token,
and waits, first come first served, while they are not free. All sequences of a worker compute one
token in each of its steps, so they share one count of steps: it runs from event to event, where an
event is a sequence that joins or leaves.

    steps(t)  ____/''''\\____/     slower the more sequences run, and the longer their contexts
              join leave   join

Pure. The router spreads sequences evenly, so the n workers are replayed as one that is like each of
them: a sequence meets itself and the n-th part of all others (batch, context and blocks).
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from math import inf, sqrt
from operator import itemgetter

from services.autoscaler.planning.typical_worker import TypicalWorker
from services.autoscaler.view import Arrival, Promise
from shared.message_parts.step_costs import StepCosts

LEAST_STEP_S = 1e-6
"""no device steps faster; a fit that says so would stop the clock"""


DecodeSequence = tuple[float, int, int, int]
"""Second at which its prompt is computed, tokens of the prompt, tokens of the answer (at least 1),
and the KV blocks that both take."""


@dataclass(frozen=True)
class DecodeReplay:
    """The answers of a window."""

    sequences: Sequence[DecodeSequence]
    """in the order in which their prompts are computed"""
    costs: StepCosts
    num_blocks: int
    """of one worker"""
    promise: Promise
    since_s: float = -inf
    """answers whose prompts were computed before it run along, and are not judged"""
    growth: float = 1.0
    """times as much comes now: so much smaller is the part of a worker"""

    @classmethod
    def of(
        cls,
        arrivals: Iterable[Arrival],
        takes_s: Iterable[float],
        worker: TypicalWorker,
        promise: Promise,
        since_s: float = -inf,
        growth: float = 1.0,
    ) -> "DecodeReplay":
        """`takes_s`: the computing of each arrival's prompt. An answer that no worker has blocks
        for is left out, and so is one that is over before `since_s`."""
        block_size, num_blocks = max(1, worker.block_size), worker.num_blocks
        sequences = []
        for arrival, prompt_s in zip(arrivals, takes_s, strict=True):
            num_prompt, num_output = arrival.num_prompt_tokens, max(1, arrival.num_output_tokens)
            needed = -(-(num_prompt + num_output) // block_size)
            if needed <= num_blocks:
                sequences.append((arrival.at_s + prompt_s, num_prompt, num_output, needed))
        sequences.sort()
        everything = cls(sequences, worker.costs, num_blocks, promise, growth=growth)
        return everything._since(since_s)

    def latest(self, num_requests: int) -> "DecodeReplay":
        judged = self.sequences[max(0, len(self.sequences) - num_requests) :]
        since_s = max(self.since_s, judged[0][0]) if judged else inf
        return replace(self._since(since_s), growth=1.0)

    def _since(self, since_s: float) -> "DecodeReplay":
        """With those that run then, as slow as is promised, or begin later."""
        gap_s = self.promise.gap_s
        left = [one for one in self.sequences if one[0] + gap_s * one[2] >= since_s]
        return replace(self, sequences=left, since_s=since_s)

    def share(self, num_workers: int, at_least: float = 0.0, strictness: float = 1.0) -> float:
        """Answers whose wait for blocks and whose mean gap were at most `strictness` x what is
        promised. Fewer than `at_least`: some number below it. None to be judged: 1.

        An answer that could not be in time alone on a worker is not judged: no number of workers
        helps it.
        """
        worker = _Worker(self, num_workers / self.growth, strictness)
        first = bisect_left(self.sequences, self.since_s, key=itemgetter(0))
        num_judged = len(self.sequences) - first
        most_late = (1 - at_least) * num_judged
        for sequence in self.sequences:
            worker.run_until(sequence[0])
            worker.take(sequence)
            if worker.num_late > most_late:
                break
        else:
            worker.run_until(inf)
        num_judged -= worker.num_hopeless
        return 1 - worker.num_late / num_judged if num_judged > 0 else 1.0


class _Worker:
    """One of n equal workers, with the n-th part of everything that runs."""

    __slots__ = (
        "_alone_s",
        "_context",
        "_context_token_s",
        "_gap_s",
        "_line",
        "_now_s",
        "_num_blocks",
        "_num_workers",
        "_row_s",
        "_running",
        "_since_s",
        "_step_s",
        "_steps",
        "_used",
        "_wait_s",
        "num_hopeless",
        "num_late",
    )

    def __init__(self, replay: DecodeReplay, num_workers: float, strictness: float) -> None:
        self.num_late = 0
        self.num_hopeless = 0
        costs = replay.costs
        self._step_s = max(LEAST_STEP_S, costs.step_s)
        self._row_s = costs.row_s
        self._alone_s = self._step_s + self._row_s
        self._context_token_s = costs.context_token_s
        self._gap_s = strictness * replay.promise.gap_s
        self._wait_s = strictness * replay.promise.wait_s
        self._since_s = replay.since_s
        self._num_workers = num_workers
        self._num_blocks = replay.num_blocks
        self._now_s = -inf
        self._steps = 0.0
        """done so far, if one had run since the beginning"""
        self._used = 0
        """blocks, of all n workers"""
        self._context = 0.0
        """tokens, of all n workers"""
        self._running: list[tuple[float, float, int, int]] = []
        """heap of (step it ends with, latest second that is in time, tokens, blocks)"""
        self._line = deque[DecodeSequence]()

    def run_until(self, end_s: float) -> None:
        """Sequences that end until then leave, and those that wait for their blocks join.

        `k` steps from now on take `step_s * k + grow_s * k^2` seconds, as contexts grow by a token
        in each; `batch` sequences run in each worker.
        """
        running, context_token_s = self._running, self._context_token_s
        while running:
            num = len(running)
            batch = 1 + (num - 1) / self._num_workers
            grow_s = context_token_s * batch / 2
            step_s = self._step_s + self._row_s * batch + 2 * grow_s * self._context / num
            num_steps = running[0][0] - self._steps
            ends_s = self._now_s + num_steps * (step_s + grow_s * num_steps)
            if ends_s > end_s:
                time_s = end_s - self._now_s
                num_steps = 2 * time_s / (step_s + sqrt(step_s * step_s + 4 * grow_s * time_s))
                self._steps += num_steps
                self._context += num * num_steps
                break
            self._now_s = ends_s
            self._steps += num_steps
            _, latest_s, num_tokens, num_blocks = heappop(running)
            self._context += num * num_steps - num_tokens
            self._used -= num_blocks
            if ends_s > latest_s:
                self.num_late += 1
            while self._line and self._fits(self._line[0]):
                self._join(self._line.popleft())
        self._now_s = end_s

    def take(self, sequence: DecodeSequence) -> None:
        """It joins now, or as soon as those before it and itself have blocks."""
        if self._line or not self._fits(sequence):
            self._line.append(sequence)
        else:
            self._join(sequence)

    def _fits(self, sequence: DecodeSequence) -> bool:
        """With fewer sequences than workers one of them is empty."""
        if len(self._running) < self._num_workers:
            return True
        return self._used / self._num_workers + sequence[3] <= self._num_blocks

    def _join(self, sequence: DecodeSequence) -> None:
        ready_s, num_prompt, num_output, num_blocks = sequence
        now_s = self._now_s
        alone_s = self._alone_s + self._context_token_s * (num_prompt + num_output / 2)
        latest_s = inf
        if ready_s < self._since_s:
            pass
        elif alone_s > self._gap_s:
            self.num_hopeless += 1
        elif now_s - ready_s > self._wait_s:
            self.num_late += 1
        else:
            latest_s = now_s + self._gap_s * num_output
        entry = (self._steps + num_output, latest_s, num_prompt + num_output, num_blocks)
        heappush(self._running, entry)
        self._context += num_prompt
        self._used += num_blocks
