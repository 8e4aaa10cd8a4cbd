"""Requests that arrive at random, of mixed lengths; a seed repeats them."""

import random
from dataclasses import dataclass
from math import exp, log

from services.simulator.batching.request import Request

Lengths = tuple[int, int]
"""the shortest and the longest, in tokens"""


@dataclass(frozen=True)
class Load:
    """What arrives. Lengths are log-uniform: as many between 16 and 32 as between 256 and 512."""

    num_requests: int
    rate: float
    """requests a second on average"""
    prompt: Lengths
    output: Lengths
    seed: int

    def requests(self) -> list[Request]:
        """Fresh ones, by arrival; the same each time."""
        source = random.Random(self.seed)  # noqa: S311 (nothing secret)
        at_s, requests = 0.0, []
        for number in range(self.num_requests):
            at_s += source.expovariate(self.rate)
            lengths = _drawn(source, self.prompt), _drawn(source, self.output)
            requests.append(Request(number, at_s, *lengths))
        return requests

    @property
    def longest(self) -> int:
        """Tokens that the longest prompt and answer would have together."""
        return self.prompt[1] + self.output[1]


def _drawn(source: random.Random, lengths: Lengths) -> int:
    low, high = lengths
    return min(high, int(exp(source.uniform(log(low), log(high + 1)))))
