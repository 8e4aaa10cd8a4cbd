"""Which requests were good enough: all limits that are stated, kept by the same request."""

from collections.abc import Iterable
from dataclasses import dataclass

from services.cli.bench.measure.quantiles import Distribution
from services.cli.bench.serve.sample import RequestSample


@dataclass(frozen=True)
class ServiceLimits:
    """What a request must keep; None is not looked at. Milliseconds."""

    ttft_ms: float | None = None
    """from the scheduled time"""
    gap_ms: float | None = None
    """p99 of the request's own chunk gaps; of fewer than 100, the largest"""
    tpot_ms: float | None = None

    @property
    def stated(self) -> bool:
        return (self.ttft_ms, self.gap_ms, self.tpot_ms) != (None, None, None)

    @property
    def text(self) -> str:
        named = (("TTFT", self.ttft_ms), ("gap p99", self.gap_ms), ("TPOT", self.tpot_ms))
        return ", ".join(f"{name} <= {limit:g} ms" for name, limit in named if limit is not None)

    def kept_by(self, sample: RequestSample) -> bool:
        if not sample.ok:
            return False
        measured = (
            (self.ttft_ms, sample.ttft_s),
            (self.gap_ms, Distribution.of(sample.gaps_s).tail),
            (self.tpot_ms, sample.tpot_s),
        )
        return all(
            limit is None or value is None or value * 1e3 <= limit for limit, value in measured
        )

    def num_good(self, samples: Iterable[RequestSample]) -> int:
        return sum(self.kept_by(sample) for sample in samples)
