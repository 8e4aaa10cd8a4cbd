"""One rate of one topology, over all its seeds: what curves and tables show."""

from collections.abc import Sequence
from dataclasses import dataclass

from services.cli.bench.verdict.topology_run import TopologyRun, gap_of, ttft_of


@dataclass(frozen=True)
class Point:
    """Valid runs only."""

    topology: str
    rate: float
    runs: Sequence[TopologyRun]

    @property
    def share(self) -> float:
        """Of the requests sent, within the limits."""
        return sum(run.num_good for run in self.runs) / sum(run.num_sent for run in self.runs)

    def ttft_ms(self, q: float) -> float | None:
        return ttft_of(self.runs).at(q)

    def gap_ms(self, q: float) -> float | None:
        return gap_of(self.runs).at(q)


def points_of(topology: str, runs: Sequence[TopologyRun]) -> list[Point]:
    """By rising rate."""
    own = [run for run in runs if run.topology == topology and not run.invalid]
    rates = sorted({run.rate for run in own})
    return [Point(topology, rate, [run for run in own if run.rate == rate]) for rate in rates]
