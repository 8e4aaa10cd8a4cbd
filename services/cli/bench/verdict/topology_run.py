"""What came of one run: one topology under one rate, with the requests of one seed."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from services.cli.bench.measure.quantiles import Distribution
from services.cli.bench.serve.report.summary import RunSummary
from services.cli.bench.serve.sample import RequestSample


class Felt(NamedTuple):
    """What the user of one request felt; no times without an answer."""

    ttft_ms: float | None
    gap_ms: float | None
    """p99 of its own gaps, of fewer than 100 the largest; None with a single chunk"""
    tpot_ms: float | None
    good: bool
    """it was answered within all limits"""


@dataclass(frozen=True)
class TopologyRun:
    """One run."""

    topology: str
    rate: float
    seed: int
    turn: int
    """its place among all runs"""
    seconds: float
    felt: Sequence[Felt]
    """of each request that was sent"""
    invalid: str = ""
    """why its figures are not the system's; empty if they are"""

    @property
    def num_sent(self) -> int:
        return len(self.felt)

    @property
    def num_good(self) -> int:
        return sum(one.good for one in self.felt)

    @property
    def num_answered(self) -> int:
        return sum(one.ttft_ms is not None for one in self.felt)

    def record(self) -> dict[str, Any]:
        """As it stands in the verdict's file."""
        return {
            "topology": self.topology,
            "rate": self.rate,
            "seed": self.seed,
            "turn": self.turn,
            "seconds": round(self.seconds, 3),
            "num_sent": self.num_sent,
            "num_good": self.num_good,
            "invalid": self.invalid or None,
            "requests": [[*one[:-1], int(one.good)] for one in self.felt],
        }

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> "TopologyRun":
        return cls(
            topology=record["topology"],
            rate=record["rate"],
            seed=record["seed"],
            turn=record["turn"],
            seconds=record["seconds"],
            felt=[
                Felt(ttft, gap, tpot, bool(good)) for ttft, gap, tpot, good in record["requests"]
            ],
            invalid=record["invalid"] or "",
        )

    @classmethod
    def of_summary(
        cls, summary: RunSummary, at: tuple[str, float, int, int], invalid: str
    ) -> "TopologyRun":
        """`at`: topology, rate, seed and turn; `invalid`: a reason other than the client."""
        felt = [_felt(sample, summary) for sample in summary.run.samples]
        reason = summary.client_fault or invalid
        return cls(*at, seconds=summary.run.seconds, felt=felt, invalid=reason)


def ttft_of(runs: Iterable[TopologyRun]) -> Distribution:
    """Of all answers, in ms."""
    return Distribution.of(
        one.ttft_ms for run in runs for one in run.felt if one.ttft_ms is not None
    )


def gap_of(runs: Iterable[TopologyRun]) -> Distribution:
    """Of each answer the p99 of its own gaps, in ms."""
    return Distribution.of(one.gap_ms for run in runs for one in run.felt if one.gap_ms is not None)


def _felt(sample: RequestSample, summary: RunSummary) -> Felt:
    if not sample.ok:
        return Felt(None, None, None, good=False)
    gap_s = Distribution.of(sample.gaps_s).tail if sample.gaps_s else None
    good = summary.limits.kept_by(sample)
    return Felt(_ms(sample.ttft_s), _ms(gap_s), _ms(sample.tpot_s), good)


def _ms(seconds_s: float | None) -> float | None:
    return None if seconds_s is None else round(seconds_s * 1e3, 3)
