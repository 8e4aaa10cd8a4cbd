"""What share of past requests would have been in time, had there been n workers that do both.

    prompts    | |     |                   |           to a worker that computes none
    steps    ..[=====][=====]..............[=====]...  . decodes alone, [==] with a chunk

A worker computes a token of each running sequence in every step, and in the same step a chunk of a
prompt where one is to be computed. So while it computes prompts a gap is as long as a step with a
chunk, and a prompt takes as much longer as its steps decode. With `rows` sequences whose contexts
sum to `context`, a step takes

    step_s + rows x row_s + context x context_token_s
           + tokens of its chunk x chunk_token_s + pairs of its chunk x chunk_pair_s

A prompt of `k` chunks takes `k` such steps, from the end of the step that runs. One that comes
before another's begin goes with it where these steps have place for all of it. A request takes the
KV blocks of its prompt and answer when its prompt begins, and waits, as all behind it, while they
are not free. Its first token comes with its prompt, the others one a step. Steps without a chunk
are counted from one leave to the next, as in `decode_replay`.

Pure. Each of the n workers is replayed: how many chunks meet a short answer is chance, and their
mean alone would say that none is late. Prompts go where the router sends them.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import compress, cycle
from math import ceil, inf
from operator import itemgetter

from services.autoscaler.planning.decode_replay import LEAST_STEP_S
from services.autoscaler.planning.typical_worker import TypicalWorker
from services.autoscaler.view import Arrival, Promise
from shared.message_parts.step_costs import StepCosts

MOST_REQUESTS = 8000
LEAST_WORKERS = 4
"""Of a window with more requests some workers are replayed, with their part of it: a share is known
to a tenth of a percent then, and a decision fits into its turn. Fewer workers are not like many."""

MOST_TURNS = 64
"""in which a prompt is computed; one of more chunks has several of them in each"""

MixedRequest = tuple[float, float, float, int, int, int, int, int]
"""Second of arrival, seconds of its chunks besides what their steps take anyway, seconds from token
to token alone on a worker, its chunks, tokens to compute, tokens of the prompt, steps after the
first token, and the KV blocks it takes."""


@dataclass(frozen=True)
class MixedReplay:
    """The requests of a window."""

    requests: Sequence[MixedRequest]
    """oldest first"""
    costs: StepCosts
    step_tokens: int
    num_blocks: int
    """of one worker"""
    promise: Promise
    since_s: float = -inf
    """requests that came before it run along, and are not judged"""
    growth: float = 1.0
    """times as much comes now: each prompt and each running sequence weighs as much more"""

    @classmethod
    def of(
        cls,
        arrivals: Iterable[Arrival],
        takes_s: Iterable[float],
        worker: TypicalWorker,
        promise: Promise,
        since_s: float = -inf,
        growth: float = 1.0,
    ) -> "MixedReplay":
        """`takes_s`: the computing of each arrival's prompt, alone. A request that no worker has
        blocks for is left out, and so is one that is over before `since_s`."""
        block_size, step_tokens = max(1, worker.block_size), max(1, worker.step_tokens)
        costs, requests = worker.costs, list[MixedRequest]()
        step_s, context_token_s, num_blocks = costs.step_s, costs.context_token_s, worker.num_blocks
        alone_s = step_s + costs.row_s
        for arrival, prompt_s in zip(arrivals, takes_s, strict=True):
            num_prompt, num_output = arrival.num_prompt_tokens, arrival.num_output_tokens or 1
            needed = -(-(num_prompt + num_output) // block_size)
            if needed > num_blocks:
                continue
            num_tokens = max(1, num_prompt - arrival.num_cached_tokens)
            num_chunks = -(-num_tokens // step_tokens)
            chunk_s = prompt_s - num_chunks * step_s
            num_steps = num_output - 1
            gap_s = alone_s + context_token_s * (num_prompt + num_steps / 2) if num_steps else 0.0
            sizes = (num_chunks, num_tokens, num_prompt, num_steps, needed)
            requests.append((arrival.at_s, chunk_s, gap_s, *sizes))
        everything = cls(requests, costs, step_tokens, num_blocks, promise, growth=growth)
        return everything._since(since_s)

    def latest(self, num_requests: int) -> "MixedReplay":
        judged = self.requests[max(0, len(self.requests) - num_requests) :]
        since_s = max(self.since_s, judged[0][0]) if judged else inf
        return replace(self._since(since_s), growth=1.0)

    def _since(self, since_s: float) -> "MixedReplay":
        """With those that run then, as slow as is promised, or come later."""
        wait_s, gap_s = self.promise.wait_s, self.promise.gap_s
        first = bisect_left(self.requests, since_s, key=_moment)
        running = [
            one
            for one in self.requests[:first]
            if one[0] + wait_s + one[1] + gap_s * one[6] >= since_s
        ]
        return replace(self, requests=[*running, *self.requests[first:]], since_s=since_s)

    def share(self, num_workers: int, at_least: float = 0.0, strictness: float = 1.0) -> float:
        """Requests that waited at most `strictness` x `wait_s`, their prompt's own computing apart,
        and whose mean gap was at most `strictness` x `gap_s`. Fewer than `at_least`: some number
        below it. None to be judged: 1.

        Strictness below 1 makes prompts longer too: waits explode at the edge of what workers can
        do. A request whose answer could not be in time alone on a worker is not judged.
        """
        num_replayed, requests = self._part(num_workers)
        tally = _Tally()
        workers = [_Worker(self, strictness, tally) for _ in range(num_replayed)]
        costs = self.costs
        token_s = costs.chunk_token_s + costs.step_s / self.step_tokens
        line = _Line(workers, token_s * self.growth / strictness)
        num_judged = len(requests) - bisect_left(requests, self.since_s, key=_moment)
        most_late = (1 - at_least) * num_judged
        for request in requests:
            line.take(request)
            if tally.num_late > most_late:
                break
        else:
            for worker in workers:
                worker.decode_until(inf)
        num_judged -= tally.num_hopeless
        return 1 - tally.num_late / num_judged if num_judged > 0 else 1.0

    def _part(self, num_workers: int) -> tuple[int, Sequence[MixedRequest]]:
        """The workers that are replayed, and their part of the requests."""
        num = ceil(num_workers * MOST_REQUESTS / max(1, len(self.requests)))
        num = min(num_workers, max(LEAST_WORKERS, num))
        if num == num_workers:
            return num, self.requests
        taken = [at * num % num_workers < num for at in range(num_workers)]
        return num, list(compress(self.requests, cycle(taken)))


_moment = itemgetter(0)


@dataclass(slots=True)
class _Tally:
    """Of all workers."""

    num_late: int = 0
    num_hopeless: int = 0


class _Line:
    """Where a prompt goes, as a router sends it: where it adds the least, what is left of a
    worker's prompts, what this one costs, and that again for each sequence that it holds up."""

    __slots__ = ("_free_s", "_token_s", "_workers")

    def __init__(self, workers: Sequence["_Worker"], token_s: float) -> None:
        """`token_s`: seconds per prompt token, as a router knows them."""
        self._workers = workers
        self._token_s = token_s
        self._free_s = [-inf] * len(workers)
        """when the prompts of each are computed"""

    def take(self, request: MixedRequest) -> None:
        at_s, prompt_s = request[0], request[4] * self._token_s
        chosen, least_s = 0, inf
        for at, free_s in enumerate(self._free_s):
            added_s = prompt_s + (free_s - at_s if free_s > at_s else 0.0)
            if added_s < least_s:
                added_s += prompt_s * self._workers[at].num_sequences(at_s)
                if added_s < least_s:
                    chosen, least_s = at, added_s
        self._free_s[chosen] = self._workers[chosen].take(request)


class _Worker:
    """One of the n."""

    __slots__ = (
        "_alone_s",
        "_begins_s",
        "_context_token_s",
        "_gap_s",
        "_growth",
        "_leaves_s",
        "_left",
        "_now_s",
        "_num_blocks",
        "_row_s",
        "_running",
        "_since_s",
        "_slowness",
        "_step_s",
        "_step_tokens",
        "_steps",
        "_tally",
        "_used",
        "_wait_s",
    )

    def __init__(self, replay: MixedReplay, strictness: float, tally: _Tally) -> None:
        costs, growth = replay.costs, replay.growth
        self._alone_s = self._step_s = max(LEAST_STEP_S, costs.step_s)
        """of a step: of the next one without a chunk, and of one in which nothing runs"""
        self._row_s = growth * costs.row_s
        self._context_token_s = growth * costs.context_token_s
        self._gap_s = strictness * replay.promise.gap_s
        self._wait_s = strictness * replay.promise.wait_s
        self._growth = growth
        self._slowness = growth / strictness
        self._since_s = replay.since_s
        self._num_blocks = replay.num_blocks
        self._step_tokens = replay.step_tokens
        self._tally = tally
        self._now_s = -inf
        """until when it is replayed: the end of a step"""
        self._leaves_s = inf
        """when a sequence ends next, if no prompt comes before"""
        self._begins_s = -inf
        """when its latest prompt began, or those with it"""
        self._left = 0
        """tokens that their steps have place for"""
        self._steps = 0
        """done so far"""
        self._used = 0
        """blocks"""
        self._running: list[tuple[int, float, int, int]] = []
        """heap of (step it ends with, latest second that is in time, tokens, blocks)"""

    def take(self, request: MixedRequest) -> float:
        """Computes the prompt as soon as it can; returns when that is done."""
        at_s, chunk_s, alone_gap_s, num_chunks, num_tokens, num_prompt, num_steps, num_blocks = (
            request
        )
        chunk_s *= self._slowness
        if at_s <= self._begins_s and num_tokens <= self._left and self._fits(num_blocks):
            self._now_s += chunk_s
            self._left -= num_tokens
        else:
            if self._now_s < at_s:
                self.decode_until(at_s)
            while not self._fits(num_blocks):
                self._compute(self._running[0][0] - self._steps, 0.0)
            self._begins_s = self._now_s
            self._left = num_chunks * self._step_tokens - num_tokens
            each = -(-num_chunks // MOST_TURNS)
            for num_done in range(0, num_chunks, each):
                num = min(each, num_chunks - num_done)
                self._compute(num, chunk_s * num / num_chunks)
        now_s = self._now_s
        latest_s = inf
        if at_s >= self._since_s:
            if alone_gap_s > self._gap_s:
                self._tally.num_hopeless += 1
            elif now_s - at_s - chunk_s - num_chunks * self._alone_s > self._wait_s:
                self._tally.num_late += 1
            else:
                latest_s = now_s + self._gap_s * num_steps
        if num_steps:
            entry = (self._steps + num_steps, latest_s, num_prompt + num_steps, num_blocks)
            heappush(self._running, entry)
            self._step_s += self._row_s + self._context_token_s * num_prompt
            self._used += num_blocks
        self._note_leave()
        return now_s

    def num_sequences(self, at_s: float) -> int:
        """That decode then, or when its prompts are computed."""
        if self._leaves_s <= at_s:
            self.decode_until(at_s)
            self._note_leave()
        return len(self._running)

    def decode_until(self, end_s: float) -> None:
        """Up to the end of the step that runs then. `k` steps take `step_s * k + grow_s * k^2`
        seconds, as contexts grow by a token in each."""
        running, now_s, steps, step_s = self._running, self._now_s, self._steps, self._step_s
        while running and now_s < end_s:
            grow_s = self._context_token_s * len(running) / 2
            last, latest_s, num_tokens, num_blocks = running[0]
            num_steps, left_s = last - steps, end_s - now_s
            if num_steps * (step_s + grow_s * num_steps) > left_s:
                exact = left_s / (step_s + grow_s * left_s / step_s)
                num_steps = min(num_steps, ceil(exact))
            now_s += num_steps * (step_s + grow_s * num_steps)
            steps += num_steps
            step_s += 2 * grow_s * num_steps
            if steps == last:
                heappop(running)
                step_s -= self._row_s + self._context_token_s * num_tokens
                self._used -= num_blocks
                if now_s > latest_s:
                    self._tally.num_late += 1
        self._now_s = now_s if now_s > end_s else end_s
        self._steps, self._step_s = steps, step_s

    def _note_leave(self) -> None:
        self._leaves_s, running = inf, self._running
        if running:
            num_steps = running[0][0] - self._steps
            grow_s = self._context_token_s * len(running) / 2
            self._leaves_s = self._now_s + num_steps * (self._step_s + grow_s * num_steps)

    def _compute(self, num_steps: int, chunk_s: float) -> None:
        """`num_steps`, with `chunk_s` seconds of chunks."""
        running = self._running
        grow_s = self._context_token_s * len(running) / 2
        self._now_s += num_steps * (self._step_s + grow_s * num_steps) + chunk_s
        self._step_s += 2 * grow_s * num_steps
        steps = self._steps = self._steps + num_steps
        while running and running[0][0] <= steps:
            _, latest_s, num_tokens, num_blocks = heappop(running)
            self._step_s -= self._row_s + self._context_token_s * num_tokens
            self._used -= num_blocks
            if self._now_s > latest_s:
                self._tally.num_late += 1

    def _fits(self, num_blocks: int) -> bool:
        """Or nothing runs: then all are free."""
        return not self._running or self._growth * self._used + num_blocks <= self._num_blocks
