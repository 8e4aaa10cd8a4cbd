"""A cell in a few lines: what its users feel under a load, without a process or a second.

Prompts are computed one at a time, each on the server that is free first. Workers that do both let
what they decode wait meanwhile; workers that only decode take longer the more they have at once.
Machines differ from run to run: each run has noise of its own.
"""

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import NamedTuple

from services.cli.bench.serve.arrivals import Arrivals
from services.cli.bench.serve.report.goodput import ServiceLimits
from services.cli.bench.verdict.topology_run import Felt

NUM_TOKENS = 32
STEP_MS = 10.0


class Prompt(NamedTuple):
    """When it came, was begun and was computed, and where."""

    at_ms: float
    start_ms: float
    end_ms: float
    server: int


@dataclass(frozen=True)
class LoadCell:
    """Workers that take these times, in ms."""

    num_prefill: int
    """0: the others do both"""
    num_decode: int
    prefill_ms: float = 60.0
    row_ms: float = 0.2
    """what a sequence adds to a step"""
    noise: float = 0.03
    """of the machine from run to run, and as much again from prompt to prompt"""

    def felt(
        self, arrivals_ms: Sequence[float], rng: random.Random, limits: ServiceLimits
    ) -> list[Felt]:
        speed = rng.lognormvariate(0.0, self.noise)
        prompts = self._computed(arrivals_ms, speed, rng)
        return [
            judged(prompt.end_ms - prompt.at_ms, self._gap_ms(at, prompts, speed), limits)
            for at, prompt in enumerate(prompts)
        ]

    def _computed(
        self, arrivals_ms: Sequence[float], speed: float, rng: random.Random
    ) -> list[Prompt]:
        free = [(0.0, server) for server in range(self.num_prefill or self.num_decode)]
        prompts = []
        for at_ms in arrivals_ms:
            since_ms, server = heapq.heappop(free)
            start_ms = max(since_ms, at_ms)
            end_ms = start_ms + self.prefill_ms * speed * rng.lognormvariate(0.0, self.noise)
            heapq.heappush(free, (end_ms, server))
            prompts.append(Prompt(at_ms, start_ms, end_ms, server))
        return prompts

    def _gap_ms(self, at: int, prompts: Sequence[Prompt], speed: float) -> float:
        """The longest while the answer is written."""
        first_ms, server = prompts[at].end_ms, prompts[at].server
        last_ms = first_ms + NUM_TOKENS * STEP_MS
        following = islice(prompts, at + 1, None)
        later = list(takewhile(lambda one: one.start_ms < last_ms, following))
        gap_ms = (STEP_MS + self.row_ms * len(later) / self.num_decode) * speed
        if self.num_prefill:
            return gap_ms
        blocked = (one.end_ms - one.start_ms for one in later if one.server == server)
        return gap_ms + max(blocked, default=0.0)


def judged(ttft_ms: float, gap_ms: float, limits: ServiceLimits) -> Felt:
    assert limits.ttft_ms is not None
    assert limits.gap_ms is not None
    good = ttft_ms <= limits.ttft_ms and gap_ms <= limits.gap_ms
    return Felt(round(ttft_ms, 3), round(gap_ms, 3), None, good)


def arrivals_ms(rate: float, seed: int, seconds: float) -> list[float]:
    """The same for each cell."""
    rng = random.Random(f"{seed} arrivals {rate}")  # noqa: S311 a workload
    return [at_s * 1e3 for at_s in Arrivals().times(max(round(rate * seconds), 1), seconds, rng)]
