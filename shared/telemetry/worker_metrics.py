"""What the workers said of themselves, as Prometheus metrics; nothing is kept twice.

A counter of one worker, `baton_worker_<name>_total{worker, role, ...}`, restarts and vanishes
with the worker. The same counter of the whole pool, `baton_<name>_total{...}`, is summed over
all workers this gateway has seen, so it never falls.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from shared.protocol import Load

COUNTERS = {
    "engine_steps": ("", "steps that ran the model"),
    "preemptions": ("", "sequences whose blocks were taken for others, to be computed again"),
    "prompt_tokens": ("source", "prompt tokens by where their KV came from"),
    "tokens_sampled": ("", "tokens sampled, lost attempts included"),
    "early_starts": ("", "sequences that decoded while their KV was being verified"),
    "decode_steps": ("over", "decode steps that took more than `over` times their prediction"),
    "prefix_cache_queries": ("", "prompt tokens looked up in the prefix cache"),
    "prefix_cache_hits": ("", "of those, the ones found"),
    "local_prefill_tokens": ("reason", "prompt tokens computed on a decode worker"),
    "kv_transfers": ("transport", "verified hand-overs"),
    "kv_transfer_bytes": ("transport", "KV bytes received"),
    "kv_transfer_blocks": ("transport", "KV blocks received"),
    "kv_transfer_busy_us": ("transport", "microseconds in which hand-overs waited for their bytes"),
    "backlog_pops": ("", "times a worker asked Redis for waiting requests"),
    "refusals": ("reason", "attempts refused, nothing kept"),
    "handed_back": ("", "attempts given back cleanly, under pressure or while draining"),
    "failed_attempts": ("", "attempts lost at a worker"),
    "loop_failures": ("loop", "failed turns of background loops; this gateway's too"),
    "redis_errors": ("kind", "answers of Redis that were no answer; this gateway's too"),
    "log_lines_dropped": ("", "log lines that could not be written; this gateway's too"),
}
"""name in the worker's counters -> label its `name:value` form has, and its meaning"""
GAUGES = {
    "padding_ratio": ("", "rows of the latest steps that had no token, of all rows, 0 to 1"),
    "host_gap_ratio": (
        "",
        "time for which the device waited for the host between the latest steps, of all, 0 to 1",
    ),
    "bandwidth_share": (
        "",
        "bytes that the latest steps without a chunk had to read, of what a copy moves in their "
        "time, 0 to 1",
    ),
    "flops_share": (
        "",
        "operations that the latest steps with a chunk had to do, of what a product does in "
        "their time, 0 to 1",
    ),
    "kv_internal_fragmentation_ratio": (
        "",
        "KV positions of running sequences without a token, of all they hold, 0 to 1",
    ),
    "worker_ranks": ("", "GPUs that the worker computes on, or 1 on a CPU"),
    "memory_bytes": ("kind", "memory of the worker's device, of its first GPU, by use"),
}
"""name in the worker's gauges -> label its `name:value` form has, and its meaning"""
STAGES = {
    "prefill": {
        "queued": "accepted, no chunk scheduled yet",
        "prefill": "computing",
        "held": "sealed, decode has not released the blocks yet",
    },
    "decode": {
        "reserve": "waits for blocks",
        "transfer": "its KV is being pulled",
        "queued": "local prompt, no chunk scheduled yet",
        "prefill": "local prompt, computing",
        "decode": "KV is here: decoding, or about to",
    },
}
"""stages of an attempt by the role of its worker"""


@dataclass(frozen=True)
class WorkerSample:
    """What a gateway last heard from one worker."""

    worker_id: str
    role: str
    load: Load
    counters: Mapping[str, int]
    stages: Mapping[str, int] = field(default_factory=dict)
    gauges: Mapping[str, float] = field(default_factory=dict)


class WorkerCollector(Collector):
    """Reads the workers' last words at scrape time."""

    def __init__(
        self,
        workers: Callable[[], Iterable[WorkerSample]],
        totals: Callable[[], Mapping[str, int]],
    ) -> None:
        self._workers = workers
        self._totals = totals

    def collect(self) -> Iterable[Metric]:
        """All families, also without a worker, so that a name never vanishes."""
        samples = list(self._workers())
        yield from _load_gauges(samples)
        yield from _told_gauges(samples)
        yield from _worker_counters(samples)
        yield from _pool_counters(self._totals())


def _load_gauges(samples: Iterable[WorkerSample]) -> Iterable[Metric]:
    labels = ("worker", "role")
    blocks = _gauge("blocks", "KV blocks by state", (*labels, "state"))
    usage = _gauge("kv_cache_usage_perc", "held / all KV blocks, 0 to 1", labels)
    running = _gauge("worker_running", "sequences in the worker's running batch", labels)
    waiting = _gauge("worker_waiting", "sequences that wait in the worker", labels)
    queued = _gauge("worker_queued_tokens", "prompt tokens accepted and not yet computed", labels)
    step_error = _gauge(
        "step_time_error",
        "relative error of predicted step times, 90th percentile of the latest steps",
        labels,
    )
    stages = _gauge("worker_requests", "attempts on the worker by stage", (*labels, "stage"))
    for sample in samples:
        key, load = (sample.worker_id, sample.role), sample.load
        for state in ("free", "cached", "held"):
            blocks.add_metric((*key, state), getattr(load, state))
        usage.add_metric(key, load.held / load.total if load.total else 0.0)
        running.add_metric(key, load.running)
        waiting.add_metric(key, load.waiting)
        queued.add_metric(key, load.queued_tokens)
        step_error.add_metric(key, load.step_error)
        for stage in STAGES[sample.role]:
            stages.add_metric((*key, stage), sample.stages.get(stage, 0))
    return [blocks, usage, running, waiting, queued, step_error, stages]


def _told_gauges(samples: Iterable[WorkerSample]) -> Iterable[Metric]:
    families = {
        name: _gauge(name, text, ("worker", "role", *filter(None, [label])))
        for name, (label, text) in GAUGES.items()
    }
    for sample in samples:
        for name, values, value in _known(sample.gauges, GAUGES):
            families[name].add_metric((sample.worker_id, sample.role, *values), value)
    return families.values()


def _worker_counters(samples: Iterable[WorkerSample]) -> Iterable[Metric]:
    families = {
        name: CounterMetricFamily(
            f"baton_worker_{name}",
            f"{text}; of one worker since its start",
            labels=("worker", "role", *filter(None, [label])),
        )
        for name, (label, text) in COUNTERS.items()
    }
    for sample in samples:
        for name, values, total in _known(sample.counters, COUNTERS):
            families[name].add_metric((sample.worker_id, sample.role, *values), total)
    return families.values()


def _pool_counters(totals: Mapping[str, int]) -> Iterable[Metric]:
    families = {
        name: CounterMetricFamily(
            f"baton_{name}", f"{text}; of all workers", labels=(*filter(None, [label]),)
        )
        for name, (label, text) in COUNTERS.items()
    }
    for name, values, total in _known({**_ZEROS, **totals}, COUNTERS):
        families[name].add_metric(values, total)
    return families.values()


def _known(
    told: Mapping[str, float], families: Mapping[str, tuple[str, str]]
) -> Iterable[tuple[str, tuple[str, ...], float]]:
    """(name, label values, value) of those that have a family."""
    for key, told_value in told.items():
        name, _, label = key.partition(":")
        if name in families and bool(families[name][0]) == bool(label):
            yield name, (label,) if label else (), told_value


def _gauge(name: str, text: str, labels: tuple[str, ...]) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"baton_{name}", text, labels=labels)


_ZEROS = {
    **{name: 0 for name, (label, _) in COUNTERS.items() if not label},
    **{f"prompt_tokens:{source}": 0 for source in ("computed", "cached", "transferred")},
    **{
        f"local_prefill_tokens:{why}": 0
        for why in ("agg", "no_prefill_worker", "no_pair", "slow_link")
    },
}
"""shown from the start, before any worker said a word"""
