"""What share of past prompts would have begun in time, had there been n prefill workers.

    arrivals  |  |||    |  | |        first come, first served
    worker 1  [=====][==]   [====]    a prompt takes a worker for its own computing time
    worker 2     [=========]

Pure. A wait is the time from a prompt's arrival until a worker begins with it. One more worker
never makes any wait longer, so the share grows with the number of workers.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import heapreplace
from math import inf

from services.autoscaler.planning.typical_worker import TypicalWorker
from services.autoscaler.view import Arrival


def computing_s(arrivals: Iterable[Arrival], worker: TypicalWorker) -> list[float]:
    """What a worker that does nothing else needs for each prompt.

    Its uncached tokens come in chunks of `step_tokens`, and each attends to all before it and to
    itself, so the number of pairs does not depend on the chunks. A prompt that is cached as a whole
    still computes its last token.
    """
    step_s, _, _, token_s, pair_s = worker.costs
    step_tokens = max(1, worker.step_tokens)
    found = []
    for arrival in arrivals:
        num_cached = arrival.num_cached_tokens
        num_tokens = max(1, arrival.num_prompt_tokens - num_cached)
        num_steps = -(-num_tokens // step_tokens)
        num_pairs = num_tokens * (num_cached + (num_tokens + 1) / 2)
        found.append(num_steps * step_s + num_tokens * token_s + num_pairs * pair_s)
    return found


@dataclass(frozen=True)
class PrefillReplay:
    """The prompts of a window."""

    prompts: Sequence[tuple[float, float]]
    """(second of arrival, seconds of computing), oldest first"""
    wait_s: float
    """that is still in time"""
    growth: float = 1.0
    """times as much comes now"""

    @classmethod
    def of(
        cls,
        arrivals: Iterable[Arrival],
        takes_s: Iterable[float],
        wait_s: float,
        growth: float = 1.0,
    ) -> "PrefillReplay":
        """`takes_s`: the computing of each arrival's prompt."""
        at_s = [arrival.at_s for arrival in arrivals]
        return cls(list(zip(at_s, takes_s, strict=True)), wait_s, growth)

    def latest(self, num_requests: int) -> "PrefillReplay":
        first = max(0, len(self.prompts) - num_requests)
        return replace(self, prompts=self.prompts[first:], growth=1.0)

    def share(self, num_workers: int, at_least: float = 0.0, strictness: float = 1.0) -> float:
        """Prompts that waited at most `strictness` x `wait_s`. Fewer than `at_least`: some number
        below it. No prompts: 1.

        Where more comes now, each prompt takes as much longer. Strictness below 1 slows workers
        down too: waits explode at the edge of what they can do, so a shorter wait alone is no
        distance from the edge.
        """
        if not self.prompts:
            return 1.0
        wait_s, slowness = strictness * self.wait_s, self.growth / strictness
        most_late = (1 - at_least) * len(self.prompts)
        num_late = 0
        free_s = [-inf] * num_workers
        for at_s, takes_s in self.prompts:
            begins_s = free_s[0]
            if begins_s < at_s:
                begins_s = at_s
            elif begins_s - at_s > wait_s:
                num_late += 1
                if num_late > most_late:
                    break
            heapreplace(free_s, begins_s + slowness * takes_s)
        return 1 - num_late / len(self.prompts)
