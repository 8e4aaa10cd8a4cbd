"""What users are to wait at most, and how often that is kept.

Counted at the objective itself, not at a bucket's bound. A request that ends before its first token
is in neither count: failures and refusals have counters of their own.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from shared.telemetry.histogram import PlainHistogram


class Objectives(NamedTuple):
    """What users are to wait at most."""

    ttft_s: float = 1.0
    """for a request's first token"""
    gap_s: float = 0.05
    """between two tokens"""


DEFAULT_OBJECTIVES = Objectives()


class Kept(NamedTuple):
    """Of one objective."""

    met: int
    missed: int

    def since(self, before: "Kept") -> "Kept":
        """What was added."""
        return Kept(self.met - before.met, self.missed - before.missed)


class Attainment(Collector):
    """Of the objectives, which are called `ttft` and `gap`."""

    def __init__(self, objectives: Objectives, gaps: PlainHistogram) -> None:
        """`gaps`: which counts by the objective."""
        self.limits_s: Mapping[str, float] = {"ttft": objectives.ttft_s, "gap": objectives.gap_s}
        self.gaps = gaps
        self._first_tokens = Kept(0, 0)

    def first_token(self, ttft_s: float) -> None:
        met, missed = self._first_tokens
        is_met = ttft_s <= self.limits_s["ttft"]
        self._first_tokens = Kept(met + is_met, missed + (not is_met))

    def kept(self) -> dict[str, Kept]:
        """By objective, since the start."""
        return {"ttft": self._first_tokens, "gap": Kept(*self.gaps.split(self.limits_s["gap"]))}

    def collect(self) -> Iterable[Metric]:
        limits = GaugeMetricFamily(
            "baton_slo_seconds", "what users are to wait at most", None, ["objective"]
        )
        met = CounterMetricFamily("baton_slo_met", "waits within it", None, ["objective"])
        missed = CounterMetricFamily("baton_slo_missed", "longer waits", None, ["objective"])
        for objective, kept in self.kept().items():
            limits.add_metric([objective], self.limits_s[objective])
            met.add_metric([objective], kept.met)
            missed.add_metric([objective], kept.missed)
        return limits, met, missed
