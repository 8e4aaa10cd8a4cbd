"""A histogram for what is observed once per token.

The library's own takes a lock and two more objects for each observation; this one counts in a
list and is exported like the others. For one thread.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector


class PlainHistogram(Collector):
    """Counts by bucket, a value on a bound with those below it, and the sum."""

    def __init__(self, name: str, text: str, bounds: Sequence[float]) -> None:
        """`bounds`: the upper ones, ascending, without infinity."""
        self._name = name
        self._text = text
        self._bounds = tuple(map(float, bounds))
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """`count` times `value`."""
        self._counts[bisect_left(self._bounds, value)] += count
        self._sum += value * count

    def collect(self) -> Iterable[Metric]:
        names = [*map(str, self._bounds), "+Inf"]
        buckets = list(zip(names, accumulate(self._counts), strict=True))
        yield HistogramMetricFamily(self._name, self._text, buckets, self._sum)
