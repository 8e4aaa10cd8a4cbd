"""Prometheus metrics of a gateway and of the workers it is linked to.

Names are those users know from other engines with `baton_` in front (vLLM's
`vllm:time_to_first_token_seconds` is `baton_time_to_first_token_seconds`). Worker totals reach
the gateway on PONG and carry a `worker` label; they restart with the worker.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from shared.protocol import Load

TTFT_BUCKETS_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0),
    *(2.5, 5.0, 7.5, 10.0),
)
GAP_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5)
DURATION_BUCKETS_S = tuple(0.01 * 2**step for step in range(14))


@dataclass(frozen=True)
class WorkerSample:
    """What a gateway last heard from one worker."""

    worker_id: str
    role: str
    load: Load
    counters: Mapping[str, int]


class GatewayMetrics:
    """All metrics of one gateway process, in a registry of their own."""

    def __init__(self, workers: Callable[[], Iterable[WorkerSample]]) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_WorkerCollector(workers))
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self.running = self._gauge("num_requests_running", "requests this gateway owns")
        self.waiting = self._gauge("num_requests_waiting", "of those, without a worker")
        self.outcomes = self._counter("requests", "ended requests", ("outcome", "code"))
        self.retries = self._counter("request_retries", "attempts beyond the first")
        self.prompt_tokens = self._counter("prompt_tokens", "prompt tokens of ended requests")
        self.generation_tokens = self._counter("generation_tokens", "tokens delivered")
        self.cached_tokens = self._counter("prompt_cached_tokens", "prompt tokens found cached")
        self.direct_assigns = self._counter("direct_assigns", "dispatches without the backlog")
        self.backlog_puts = self._counter("backlog_puts", "requests that joined the backlog")
        self.ttft = self._histogram(
            "time_to_first_token", "arrival to the first token", TTFT_BUCKETS_S
        )
        self.gap = self._histogram(
            "inter_token_latency", "gap between consecutive tokens", GAP_BUCKETS_S
        )
        self.e2e = self._histogram(
            "e2e_request_latency", "arrival to the last token", DURATION_BUCKETS_S
        )
        self._stages = {
            stage: self._histogram(f"request_{stage}_time", text, DURATION_BUCKETS_S)
            for stage, text in (
                ("queue", "accepted to the first chunk's schedule"),
                ("prefill", "first chunk's schedule to token 1"),
                ("handover", "token 1 to the begin of the first decode step"),
                ("decode", "first decode step to the end"),
            )
        }

    def observe_stages(self, critical_path_ms: Mapping[str, float]) -> None:
        """The critical path of one ended request, milliseconds by stage."""
        for stage, histogram in self._stages.items():
            if stage in critical_path_ms:
                histogram.observe(critical_path_ms[stage] / 1000)

    def text(self) -> bytes:
        """The exposition that `/metrics` serves."""
        return generate_latest(self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"baton_{name}", text, registry=self.registry)

    def _counter(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
        return Counter(f"baton_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets_s: tuple[float, ...]) -> Histogram:
        return Histogram(f"baton_{name}_seconds", text, buckets=buckets_s, registry=self.registry)


class _WorkerCollector(Collector):
    """Reads the workers' last words at scrape time; nothing is kept twice."""

    def __init__(self, workers: Callable[[], Iterable[WorkerSample]]) -> None:
        self._workers = workers

    def collect(self) -> Iterable[Metric]:
        labels = ("worker", "role")
        blocks = GaugeMetricFamily(
            "baton_kv_blocks", "KV blocks by state", labels=(*labels, "state")
        )
        usage = GaugeMetricFamily("baton_kv_cache_usage_perc", "held / total", labels=labels)
        running = GaugeMetricFamily("baton_worker_running", "sequences running", labels=labels)
        waiting = GaugeMetricFamily("baton_worker_waiting", "sequences waiting", labels=labels)
        queued = GaugeMetricFamily(
            "baton_worker_queued_tokens", "prompt tokens not yet computed", labels=labels
        )
        counters: dict[str, CounterMetricFamily] = {}
        for sample in self._workers():
            key = (sample.worker_id, sample.role)
            load = sample.load
            for state in ("free", "cached", "held"):
                blocks.add_metric((*key, state), getattr(load, state))
            usage.add_metric(key, load.held / load.total if load.total else 0.0)
            running.add_metric(key, load.running)
            waiting.add_metric(key, load.waiting)
            queued.add_metric(key, load.queued_tokens)
            for name, total in sample.counters.items():
                _count(counters, name, key, total)
        return [blocks, usage, running, waiting, queued, *counters.values()]


def _count(
    counters: dict[str, CounterMetricFamily], name: str, key: tuple[str, str], total: int
) -> None:
    """`name` may end in `:reason`, which becomes a label."""
    base, _, reason = name.partition(":")
    labels = ("worker", "role", "reason") if reason else ("worker", "role")
    if base not in counters:
        counters[base] = CounterMetricFamily(f"baton_{base}", "total of a worker", labels=labels)
    counters[base].add_metric((*key, reason) if reason else key, total)
