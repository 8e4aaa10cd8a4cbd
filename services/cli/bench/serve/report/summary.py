"""A run in figures: distributions, goodput, throughput, and the ideal to compare with."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from services.cli.bench.measure.quantiles import Distribution
from services.cli.bench.serve.load_loop import LoadRun
from services.cli.bench.serve.report.cost import Cost
from services.cli.bench.serve.report.goodput import ServiceLimits
from services.cli.bench.serve.report.ideal_replay import PrefillTime, ReplayedRequest, replay
from services.cli.bench.serve.sample import REFUSED, RequestSample

MAX_CLIENT_CPU_SHARE = 0.9
MAX_FIT_ERROR = 0.3
"""of the idle prefill times: a ratio to a fit further off says nothing"""
SEVERAL_TOKENS = 1.02
"""more tokens than this in a mean chunk: gaps of chunks are no gaps of tokens"""


@dataclass(frozen=True)
class Ideal:
    """What the replay needs."""

    prefill: PrefillTime
    num_servers: int

    @property
    def fault(self) -> str:
        """Why nothing is compared with it; empty if it can be."""
        error = self.prefill.error
        if error is None or error <= MAX_FIT_ERROR:
            return ""
        return (
            f"the idle prefill times are off their fit by {error:.0%}, more than "
            f"{MAX_FIT_ERROR:.0%}; measure on an idle machine, or give them with --prefill-file"
        )


@dataclass(frozen=True)
class RunSummary:
    """One load point."""

    label: str
    run: LoadRun
    limits: ServiceLimits
    max_lag_ms: float
    ideal: Ideal | None = None
    closed: bool = False
    offered_per_s: float | None = None
    """requests that were sent, whatever came of them, over the time of sending; open loop only"""
    endpoint: str = ""
    """its name; empty where there is only one"""
    usd_per_gpu_hour: float = 0.0
    """0: what the answers cost is not asked"""

    @cached_property
    def good(self) -> list[RequestSample]:
        """Those with a whole answer."""
        return [sample for sample in self.run.samples if sample.ok]

    @cached_property
    def errors(self) -> Counter[str]:
        """By kind: refusals and failures."""
        return Counter(sample.error for sample in self.run.samples if not sample.ok)

    @property
    def num_refused(self) -> int:
        return sum(sample.refused for sample in self.run.samples)

    @property
    def failures(self) -> Counter[str]:
        """By kind, without the refusals."""
        return Counter({kind: num for kind, num in self.errors.items() if kind != REFUSED})

    @cached_property
    def ttft(self) -> Distribution:
        return Distribution.of(sample.ttft_s for sample in self.good)

    @cached_property
    def ttft_sent(self) -> Distribution:
        return Distribution.of(sample.ttft_sent_s for sample in self.good)

    @cached_property
    def gap(self) -> Distribution:
        return Distribution.of(gap for sample in self.good for gap in sample.gaps_s)

    @cached_property
    def spread_gap(self) -> Distribution:
        return Distribution.of(gap for sample in self.good for gap in sample.spread_gaps_s)

    @cached_property
    def tpot(self) -> Distribution:
        return Distribution.of(s.tpot_s for s in self.good if s.tpot_s is not None)

    @cached_property
    def e2e(self) -> Distribution:
        return Distribution.of(sample.e2e_s for sample in self.good)

    @cached_property
    def send_lag(self) -> Distribution:
        return Distribution.of(sample.send_lag_s for sample in self.run.samples)

    @cached_property
    def loop_lag(self) -> Distribution:
        return Distribution.of(self.run.loop_lag_s)

    @cached_property
    def ideal_ttft(self) -> Distribution | None:
        """Of the answered requests' arrivals."""
        if self.ideal is None or self.closed:
            return None
        requests = [
            ReplayedRequest(
                sample.scheduled_s - self.run.start_s, sample.input_tokens, sample.cached_tokens
            )
            for sample in self.good
        ]
        return Distribution.of(replay(requests, self.ideal.prefill, self.ideal.num_servers))

    def ideal_ratio(self, q: float) -> float | None:
        """Measured over ideal time to first token at a quantile; None if the ideal is not known
        well enough."""
        if self.ideal is not None and self.ideal.fault:
            return None
        ideal = self.ideal_ttft.at(q) if self.ideal_ttft is not None else None
        measured = self.ttft.at(q)
        return None if not ideal or measured is None else measured / ideal

    @property
    def tokens_per_chunk(self) -> float:
        """1 when every token came alone."""
        num_chunks = sum(len(sample.chunk_times_s) for sample in self.good)
        return sum(s.num_tokens for s in self.good) / num_chunks if num_chunks else 0.0

    @property
    def several_per_chunk(self) -> bool:
        return self.tokens_per_chunk > SEVERAL_TOKENS

    @property
    def chunk_tokens_known(self) -> bool:
        return all(sample.counted_from == "continuous" for sample in self.good)

    @property
    def num_without_text(self) -> int:
        """Answers of which only the finish was seen."""
        return sum(sample.without_text for sample in self.good)

    @property
    def title(self) -> str:
        """The load point, and the endpoint where there are two."""
        return f"{self.endpoint}, {self.label}" if self.endpoint else self.label

    @property
    def marked_title(self) -> str:
        """With a mark where the figures are not the server's."""
        return f"{self.title} (INVALID)" if self.client_fault else self.title

    @property
    def num_good_enough(self) -> int:
        return self.limits.num_good(self.good)

    @property
    def cost(self) -> Cost | None:
        """Of the answers; None: not asked."""
        if not self.usd_per_gpu_hour:
            return None
        return Cost.of(self.good, self.usd_per_gpu_hour)

    def per_second(self, num: float) -> float:
        return num / self.run.seconds if self.run.seconds else 0.0

    @property
    def client_fault(self) -> str:
        """Why the client, not the server, may be what was measured; empty if it was not."""
        for name, lag in (("sends were late", self.send_lag), ("its loop was late", self.loop_lag)):
            if lag.tail * 1e3 > self.max_lag_ms:
                return f"{name}: p99 {lag.tail * 1e3:.1f} ms, limit {self.max_lag_ms:g} ms"
        if self.run.client_cpu_share > MAX_CLIENT_CPU_SHARE:
            return f"it used {self.run.client_cpu_share:.0%} of a core"
        return ""

    def record(self) -> dict[str, Any]:
        """Its JSON line."""
        ms = 1e3
        line: dict[str, Any] = {
            "kind": "summary",
            "load": self.label,
            "endpoint": self.endpoint or None,
            "loop": "closed" if self.closed else "open",
            "seconds": round(self.run.seconds, 3),
            "num_sent": self.run.num_sent,
            "offered_per_s": _rounded(self.offered_per_s),
            "num_ok": len(self.good),
            "num_refused": self.num_refused,
            "num_failed": self.failures.total(),
            "num_without_text": self.num_without_text,
            "errors": dict(self.errors),
            "ttft_ms": self.ttft.summary(ms),
            "ttft_from_send_ms": self.ttft_sent.summary(ms),
            "chunk_gap_ms": self.gap.summary(ms),
            "tokens_per_chunk": round(self.tokens_per_chunk, 4),
            "tpot_ms": self.tpot.summary(ms),
            "e2e_ms": self.e2e.summary(ms),
            "requests_per_s": round(self.per_second(len(self.good)), 4),
            "input_tokens_per_s": round(self.per_second(_sum_input(self.good)), 2),
            "output_tokens_per_s": round(self.per_second(_sum_output(self.good)), 2),
            "send_lag_ms": self.send_lag.summary(ms),
            "loop_lag_ms": self.loop_lag.summary(ms),
            "client_cpu_share": round(self.run.client_cpu_share, 3),
            "client_fault": self.client_fault or None,
        }
        if self.several_per_chunk and self.chunk_tokens_known:
            line["token_gap_spread_ms"] = self.spread_gap.summary(ms)
        if self.limits.stated:
            line["goodput"] = {
                "limits": self.limits.text,
                "requests_per_s": round(self.per_second(self.num_good_enough), 4),
                "share_of_sent": round(self.num_good_enough / max(self.run.num_sent, 1), 4),
            }
        if self.cost is not None:
            line["cost"] = self.cost.record()
        if self.ideal is not None and self.ideal_ttft is not None:
            line["ideal"] = {
                "num_servers": self.ideal.num_servers,
                "prefill": self.ideal.prefill.text,
                "ttft_ms": self.ideal_ttft.summary(ms),
                "ratio_p50": _rounded(self.ideal_ratio(0.5)),
                "ratio_p99": _rounded(self.ideal_ratio(0.99)),
                "ratio_left_out": self.ideal.fault or None,
            }
        return line


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _sum_input(samples: Sequence[RequestSample]) -> int:
    return sum(sample.input_tokens for sample in samples)


def _sum_output(samples: Sequence[RequestSample]) -> int:
    return sum(sample.num_tokens for sample in samples)
