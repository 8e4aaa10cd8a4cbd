"""Arrivals like those of two public traces, made from a few numbers that were fitted to them.

azure-code: `AzureLLMInferenceTrace_code.csv` of Azure/AzurePublicDataset (8,819 requests in 3,436 s
of November 2023, completions of code). Users are either silent or at work: bursts of seconds at 13
requests a second, between silences of two kinds, of 15 s and of 70 s on average. The share of time
at work, both silences and how bursts differ were fitted to the variance of counts in windows of 1
to 300 s, to the share of windows without a request, and to the variation of gaps.

mooncake: `conversation_trace.jsonl` of kvcache-ai/Mooncake, FAST25-release (12,031 requests in
3,537 s, chats with long contexts). Within a minute no burst shows: a Poisson process whose rate
drifts by 8 % from one ten minutes to the next.

Lengths are drawn from the quantiles of the traces, on a straight line between two in logarithms;
prompt and answer independently (correlation 0.00 and 0.05), as is each from the one before it
(0.01).
"""

import random
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import exp, log

from services.autoscaler.view import Arrival
from services.simulator.traces.recorded import Trace

Quantiles = Sequence[tuple[float, int]]


@dataclass(frozen=True)
class Bursts:
    """Work and silence in turn, each of a random length."""

    rate_s: float
    """requests a second on average over both"""
    at_work: float
    """share of the time"""
    short_share: float
    """of the silent time that short silences make up"""
    short_s: float
    long_s: float
    variance: float
    """of a burst's rate, in squares of its mean"""

    def moments(self, length_s: float, rng: random.Random) -> Iterator[float]:
        per_short, per_long = self.short_share / self.short_s, (1 - self.short_share) / self.long_s
        silence_s = 1 / (per_short + per_long)
        work_s = silence_s * self.at_work / (1 - self.at_work)
        at_s = 0.0
        while at_s < length_s:
            end_s = at_s + rng.expovariate(1 / work_s)
            rate_s = self.rate_s / self.at_work
            rate_s *= rng.gammavariate(1 / self.variance, self.variance)
            while rate_s > 0 and (at_s := at_s + rng.expovariate(rate_s)) < min(end_s, length_s):
                yield at_s
            is_short = rng.random() < per_short * silence_s
            at_s = end_s + rng.expovariate(1 / (self.short_s if is_short else self.long_s))


@dataclass(frozen=True)
class Drift:
    """A Poisson process whose rate is another one after each `width_s`."""

    rate_s: float
    width_s: float
    variance: float

    def moments(self, length_s: float, rng: random.Random) -> Iterator[float]:
        begin_s = 0.0
        while begin_s < length_s:
            rate_s = self.rate_s * rng.gammavariate(1 / self.variance, self.variance)
            end_s, at_s = min(begin_s + self.width_s, length_s), begin_s
            while (at_s := at_s + rng.expovariate(rate_s)) < end_s:
                yield at_s
            begin_s += self.width_s


@dataclass(frozen=True)
class Shape:
    """What a trace is like."""

    moments: Callable[[float, random.Random], Iterator[float]]
    prompts: Quantiles
    """(share, tokens), from the smallest to the largest"""
    answers: Quantiles
    copies: int
    """that keep about five workers of `worker_kind.PREFILL` busy"""

    def trace(self, length_s: float, seed: int) -> Trace:
        """One user group's, for `length_s`."""
        rng = random.Random(seed)  # noqa: S311
        arrivals = [
            Arrival(at_s, _drawn(self.prompts, rng), 0, _drawn(self.answers, rng))
            for at_s in self.moments(length_s, rng)
        ]
        return Trace(arrivals, length_s)


def _drawn(quantiles: Quantiles, rng: random.Random) -> int:
    share = rng.random()
    after = bisect_right(quantiles, share, key=_share)
    (low, few), (high, many) = quantiles[after - 1], quantiles[after]
    part = (share - low) / (high - low)
    return round(exp(log(few) + part * (log(many) - log(few))))


def _share(quantile: tuple[float, int]) -> float:
    return quantile[0]


_SHARES = (
    0.0,
    0.01,
    0.02,
    0.05,
    0.1,
    0.2,
    0.3,
    0.4,
    0.5,
    0.6,
    0.7,
    0.8,
    0.9,
    0.95,
    0.98,
    0.99,
    0.999,
    1,
)
_AZURE_PROMPTS = (
    3,
    17,
    35,
    75,
    147,
    386,
    770,
    1075,
    1469,
    1909,
    2433,
    3192,
    5186,
    7302,
    7436,
    7436,
    7437,
    7437,
)
_AZURE_ANSWERS = (6, 6, 6, 6, 7, 8, 9, 11, 13, 16, 20, 29, 55, 90, 172, 252, 824, 1899)
_MOONCAKE_PROMPTS = (
    891,
    894,
    896,
    901,
    964,
    1662,
    3263,
    4993,
    6909,
    9570,
    13196,
    17869,
    27367,
    39549,
    66425,
    85401,
    121301,
    126195,
)
_MOONCAKE_ANSWERS = (
    1,
    3,
    3,
    10,
    24,
    100,
    213,
    291,
    350,
    399,
    447,
    504,
    597,
    698,
    891,
    1120,
    2000,
    2000,
)


def _quantiles(tokens: Sequence[int]) -> Quantiles:
    return tuple(zip(_SHARES, tokens, strict=True))


SHAPES = {
    "azure-code": Shape(
        Bursts(2.567, 0.18, 0.4, 12.0, 70.0, 0.15).moments,
        _quantiles(_AZURE_PROMPTS),
        _quantiles(_AZURE_ANSWERS),
        copies=16,
    ),
    "mooncake": Shape(
        Drift(3.401, 600.0, 0.006).moments,
        _quantiles(_MOONCAKE_PROMPTS),
        _quantiles(_MOONCAKE_ANSWERS),
        copies=2,
    ),
}
