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
from math import ceil, inf

from services.autoscaler.planning.typical_worker import TypicalWorker
from services.autoscaler.view import Arrival
from shared.protocol import StepCosts


def computing_s(arrival: Arrival, costs: StepCosts, step_tokens: int) -> float:
    """What a worker that does nothing else needs for the prompt.

    Its uncached tokens come in chunks of `step_tokens`, and each attends to all before it and to
    itself, so the number of pairs does not depend on the chunks. A prompt that is cached as a whole
    still computes its last token.
    """
    num_cached = arrival.num_cached_tokens
    num_tokens = max(1, arrival.num_prompt_tokens - num_cached)
    num_pairs = num_tokens * num_cached + num_tokens * (num_tokens + 1) / 2
    num_steps = ceil(num_tokens / max(1, step_tokens))
    return (
        num_steps * costs.step_s + num_tokens * costs.chunk_token_s + num_pairs * costs.chunk_pair_s
    )


@dataclass(frozen=True)
class PrefillReplay:
    """The prompts of a window."""

    prompts: Sequence[tuple[float, float]]
    """(second of arrival, seconds of computing), oldest first"""
    wait_s: float
    """that is still in time"""

    @classmethod
    def of(
        cls, arrivals: Iterable[Arrival], worker: TypicalWorker, wait_s: float
    ) -> "PrefillReplay":
        """`worker`: like which all are taken to be."""
        costs, step_tokens = worker.costs, worker.step_tokens
        prompts = [(item.at_s, computing_s(item, costs, step_tokens)) for item in arrivals]
        return cls(prompts, wait_s)

    def latest(self, num_requests: int) -> "PrefillReplay":
        return replace(self, prompts=self.prompts[-num_requests:])

    def share(self, num_workers: int, at_least: float = 0.0, strictness: float = 1.0) -> float:
        """Prompts that waited at most `strictness` x `wait_s`. Fewer than `at_least`: some number
        below it. No prompts: 1.

        Strictness below 1 also slows the workers down to it: waits explode at the edge of what they
        can do, so a shorter wait alone is no distance from the edge.
        """
        if not self.prompts:
            return 1.0
        wait_s, slowness = strictness * self.wait_s, 1 / strictness
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
