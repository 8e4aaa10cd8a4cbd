"""The prompts that all ways answer: they begin alike, end differently, and have answers of mixed
lengths."""

import random
from dataclasses import dataclass

from services.cli.bench.engine.workload import Request, Workload

SEED, WARM_SEED = 1, 2
WARM_OUTPUT = 2


@dataclass(frozen=True)
class Load:
    """Lengths in tokens."""

    num_requests: int
    width: int
    """sequences at once, where there are several"""
    num_shared: int
    """that all prompts begin with"""
    num_own: int
    """that follow, and that no other prompt has"""
    output: tuple[int, int]
    """the shortest and the longest answer"""

    @property
    def num_prompt(self) -> int:
        return self.num_shared + self.num_own

    @property
    def longest(self) -> int:
        return self.num_prompt + self.output[1]

    def workload(self, vocab_size: int) -> Workload:
        """The same each time."""
        return self._drawn(vocab_size, SEED)

    def warm_up(self, vocab_size: int) -> Workload:
        """As many prompts of these lengths that begin otherwise, with short answers."""
        return self._drawn(vocab_size, WARM_SEED).shortened(WARM_OUTPUT)

    def _drawn(self, vocab_size: int, seed: int) -> Workload:
        source = random.Random(seed)  # noqa: S311 (nothing secret)
        ids = range(vocab_size)
        shared = tuple(source.choices(ids, k=self.num_shared))
        requests = []
        for _ in range(self.num_requests):
            own = tuple(source.choices(ids, k=self.num_own))
            requests.append(Request(shared + own, source.randint(*self.output)))
        return Workload(tuple(requests))


CPU = Load(num_requests=16, width=8, num_shared=96, num_own=16, output=(16, 48))
"""half a minute on two cores, for a model of a few million parameters"""
GPU = Load(num_requests=12, width=6, num_shared=768, num_own=256, output=(8, 24))
"""a minute on an H200, for a model of half a billion parameters in float32: without KV each token
computes more than a thousand"""
