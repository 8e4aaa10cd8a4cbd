"""Prometheus metrics of a gateway and of the workers it is linked to.

Names are those users know from other engines with `baton_` in front (vLLM's
`vllm:time_to_first_token_seconds` is `baton_time_to_first_token_seconds`).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from prometheus_client import (
    CollectorRegistry,
    Counter,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from shared.telemetry.attainment import DEFAULT_OBJECTIVES, Attainment, Objectives
from shared.telemetry.histogram import PlainHistogram
from shared.telemetry.worker_metrics import WorkerCollector, WorkerSample

TTFT_BUCKETS_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0),
    *(2.5, 5.0, 7.5, 10.0),
)
GAP_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5)
FINE_GAP_BOUNDS_S = tuple(
    sorted({*map(float, GAP_BUCKETS_S), *(0.0005 * 1.08**step for step in range(128))})
)
"""what gaps are counted by: to within 8 %, up to 9 s"""
DURATION_BUCKETS_S = tuple(0.01 * 2**step for step in range(14))
REFUSALS = ("away", "refuses_writes")
"""why Redis admits nobody"""
OUTCOMES = ("done", "failed", "cancelled")
ATTEMPT_REASONS = (
    *("first", "link_lost", "stalled", "handback_killed"),
    *("kv_transfer", "source_lost"),
)
"""those that alerts ask for: shown from the start, or the first of them would be no increase"""


@dataclass(frozen=True)
class GatewayFacts:
    """What the gateway counts elsewhere, as it is now."""

    serves: bool = False
    """workers would serve a request"""
    num_running: int = 0
    num_waiting: int = 0
    direct_assigns: int = 0
    backlog_puts: int = 0
    backlog_pulls: int = 0
    records_dropped: int = 0
    retries_held: int = 0
    attempts: Mapping[str, int] = field(default_factory=dict)
    """by reason"""
    admissions_refused: Mapping[str, int] = field(default_factory=dict)
    """by reason"""
    ignored_fields: Mapping[str, int] = field(default_factory=dict)
    """by name"""
    worker_totals: Mapping[str, int] = field(default_factory=dict)
    """by counter name, over all workers ever linked"""


class GatewayMetrics:
    """All metrics of one gateway process, in a registry of their own."""

    def __init__(
        self,
        workers: Callable[[], Iterable[WorkerSample]],
        facts: Callable[[], GatewayFacts] = GatewayFacts,
        objectives: Objectives = DEFAULT_OBJECTIVES,
    ) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_GatewayCollector(facts))
        self.registry.register(WorkerCollector(workers, lambda: facts().worker_totals))
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self.outcomes = self._counter("requests", "ended requests by outcome", ("outcome",))
        for outcome in OUTCOMES:
            self.outcomes.labels(outcome)
        self.failures = self._counter("request_failures", "failed requests by code", ("code",))
        self.generation_tokens = self._counter(
            "generation_tokens", "output tokens of ended requests"
        )
        self.ttft = self._histogram(
            "time_to_first_token", "arrival to the first token", TTFT_BUCKETS_S
        )
        self.gap = PlainHistogram(
            "baton_inter_token_latency_seconds",
            "gap between consecutive tokens",
            GAP_BUCKETS_S,
            sorted({*FINE_GAP_BOUNDS_S, objectives.gap_s}),
        )
        self.registry.register(self.gap)
        self.attainment = Attainment(objectives, self.gap)
        self.registry.register(self.attainment)
        self.e2e = self._histogram(
            "e2e_request_latency", "arrival to the recorded end", DURATION_BUCKETS_S
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

    def _counter(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
        return Counter(f"baton_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets_s: tuple[float, ...]) -> Histogram:
        return Histogram(f"baton_{name}_seconds", text, buckets=buckets_s, registry=self.registry)


class _GatewayCollector(Collector):
    """Reads the gateway's own facts at scrape time."""

    def __init__(self, facts: Callable[[], GatewayFacts]) -> None:
        self._facts = facts

    def collect(self) -> Iterable[Metric]:
        facts = self._facts()
        for name, text, value in (
            ("serves", "1: workers would serve a request now", facts.serves),
            ("num_requests_running", "requests of this gateway on a worker", facts.num_running),
            ("num_requests_waiting", "requests without a worker", facts.num_waiting),
        ):
            yield GaugeMetricFamily(f"baton_{name}", text, value=value)
        for name, text, value in (
            ("direct_assigns", "requests assigned without the backlog", facts.direct_assigns),
            ("backlog_puts", "requests that joined the backlog", facts.backlog_puts),
            ("backlog_pulls", "requests that a worker popped from it", facts.backlog_pulls),
            ("records_dropped", "outcomes never recorded: Redis was away", facts.records_dropped),
            ("retries_held", "retries that waited for the retry budget", facts.retries_held),
        ):
            yield CounterMetricFamily(f"baton_{name}", text, value=value)
        attempts = CounterMetricFamily(
            "baton_attempts",
            "attempts by reason: first, or what ended the one before",
            None,
            ["reason"],
        )
        for reason, value in {**dict.fromkeys(ATTEMPT_REASONS, 0), **facts.attempts}.items():
            attempts.add_metric([reason], value)
        yield attempts
        refused = CounterMetricFamily(
            "baton_admissions_refused", "requests that Redis did not admit", None, ["reason"]
        )
        for reason in {*REFUSALS, *facts.admissions_refused}:
            refused.add_metric([reason], facts.admissions_refused.get(reason, 0))
        yield refused
        ignored = CounterMetricFamily(
            "baton_ignored_fields", "fields of requests that nobody here knows", None, ["field"]
        )
        for name, value in facts.ignored_fields.items():
            ignored.add_metric([name], value)
        yield ignored
