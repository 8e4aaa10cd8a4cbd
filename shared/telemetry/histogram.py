"""A histogram for what is observed once per token.

The library's own takes a lock and two more objects for each observation; this one counts in a
list and is exported like the others. For one thread.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate
from math import inf

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector


class PlainHistogram(Collector):
    """Counts by bucket, a value on a bound with those below it, and the sum."""

    def __init__(
        self, name: str, text: str, bounds: Sequence[float], fine: Sequence[float] = ()
    ) -> None:
        """`bounds`: the upper ones, ascending, without infinity. `fine`: all that are counted by,
        these among them; the others are not exported."""
        self._name = name
        self._text = text
        self._exported = tuple(map(float, bounds))
        self.bounds = tuple(map(float, fine or bounds))
        """that are counted by"""
        assert set(self._exported) <= set(self.bounds)
        self._counts = [0] * (len(self.bounds) + 1)
        self._sum = 0.0
        self._find(0.0)

    def observe(self, value: float, count: int = 1) -> None:
        """`count` times `value`."""
        if not self._above < value <= self._until:
            self._find(value)
        self._counts[self._place] += count
        self._sum += value * count

    def _find(self, value: float) -> None:
        """The bucket of a value, which the next one, of the same step, is likely to share."""
        place = self._place = bisect_left(self.bounds, value)
        self._above = self.bounds[place - 1] if place else -inf
        self._until = self.bounds[place] if place < len(self.bounds) else inf

    def counts(self) -> list[int]:
        """Not accumulated, by the bounds that are counted by; the last of what is beyond."""
        return list(self._counts)

    def split(self, bound: float) -> tuple[int, int]:
        """Values up to this bound, one of those that are counted by, and above it."""
        end = self.bounds.index(bound) + 1
        return sum(self._counts[:end]), sum(self._counts[end:])

    def collect(self) -> Iterable[Metric]:
        sums = dict(zip((*self.bounds, inf), accumulate(self._counts), strict=True))
        buckets = [(str(bound), sums[bound]) for bound in self._exported]
        buckets.append(("+Inf", sums[inf]))
        yield HistogramMetricFamily(self._name, self._text, buckets, self._sum)
