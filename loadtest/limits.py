"""Limits that a run states before it begins, and which of them it broke."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import ceil

QUANTILE = 0.99


@dataclass(frozen=True)
class RunLimits:
    """None is not looked at."""

    ttft_ms: float | None = None
    """p99 over all kinds of requests"""
    gap_ms: float | None = None
    failed: float | None = None
    """share of the requests that may fail"""

    @property
    def stated(self) -> bool:
        return self != RunLimits()

    def broken(self, times: Mapping[str, Counter[int]], num: int, num_failed: int) -> list[str]:
        """What was not kept, in words. `times`: how often each time in ms was measured, of TTFT
        and GAP; `num`: of all requests. What was not measured was not kept."""
        found = list(self._broken_times(times))
        if self.failed is not None and num_failed > self.failed * num:
            found.append(f"{num_failed} of {num} requests failed, limit {self.failed:.2%}")
        return found

    def _broken_times(self, times: Mapping[str, Counter[int]]) -> Iterator[str]:
        for kind, limit_ms in (("TTFT", self.ttft_ms), ("GAP", self.gap_ms)):
            if limit_ms is None:
                continue
            p99_ms = quantile(times.get(kind, Counter()), QUANTILE)
            if p99_ms is None:
                yield f"no {kind} was measured"
            elif p99_ms > limit_ms:
                yield f"{kind} p99 is {p99_ms:g} ms, limit {limit_ms:g} ms"


def quantile(counts: Counter[int], q: float) -> int | None:
    """By nearest rank; None of nothing."""
    rank, seen = max(ceil(q * counts.total() - 1e-9), 1), 0
    for value, count in sorted(counts.items()):
        seen += count
        if seen >= rank:
            return value
    return None


def merged(counts: Iterable[Mapping[int, int]]) -> Counter[int]:
    total: Counter[int] = Counter()
    for one in counts:
        total.update(one)
    return total
