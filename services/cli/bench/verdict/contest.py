"""Rate after rate, all topologies in turns, until each one's goodput lies between two close rates.

    propose a rate for each topology -> run them in turns, seed after seed -> again

Knows no cell: whoever calls it says how one run is measured.
"""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from services.cli.bench.verdict.curve import Counts, Curve
from services.cli.bench.verdict.judgement import Entry, Side
from services.cli.bench.verdict.schedule import turns
from services.cli.bench.verdict.search import MOST_POINTS, bracket_of, next_rate
from services.cli.bench.verdict.topology_run import TopologyRun

MOST_TRIES = 3
"""of a run that is INVALID: other work on the machine may be over the next time"""

Measure = Callable[[str, float, int, int], Awaitable[TopologyRun]]
"""takes topology, rate, seed and turn"""


@dataclass(frozen=True)
class ContestRules:
    """What is tried, and when a rate is held."""

    sides: Mapping[str, Side]
    """of each topology; several of pd are splits, of which only the best one counts"""
    seeds: Sequence[int]
    first_rate: float
    wanted: float
    """share of the requests that must be within the limits"""
    lowest_rate: float = 0.0
    most_points: int = MOST_POINTS


@dataclass
class Contest:
    """The runs so far, and what follows from them."""

    rules: ContestRules
    runs: list[TopologyRun] = field(default_factory=list)

    async def run(self, measure: Measure) -> None:
        for number in count():
            rates = self._next_rates()
            if not rates:
                return
            for topology, seed in turns(list(rates), self.rules.seeds, start=number):
                await self._run_until_valid(measure, topology, rates[topology], seed)

    @property
    def entries(self) -> list[Entry]:
        return [
            Entry(topology, side, self._curve(topology), self._stopped(topology))
            for topology, side in self.rules.sides.items()
        ]

    async def _run_until_valid(
        self, measure: Measure, topology: str, rate: float, seed: int
    ) -> None:
        for _ in range(MOST_TRIES):
            run = await measure(topology, rate, seed, len(self.runs) + 1)
            self.runs.append(run)
            if not run.invalid:
                return

    def _next_rates(self) -> dict[str, float]:
        rules, found = self.rules, {}
        for entry in self.entries:
            if entry.stopped or self._is_beaten(entry):
                continue
            held = entry.curve.held(rules.wanted)
            rate = next_rate(held, rules.first_rate, rules.lowest_rate, rules.most_points)
            if rate is not None:
                found[entry.topology] = rate
        return found

    def _is_beaten(self, entry: Entry) -> bool:
        """Another split of the same side held a rate that this one did not."""
        _, failed = bracket_of(entry.curve.held(self.rules.wanted))
        if failed is None:
            return False
        others = (one for one in self.entries if one.side == entry.side)
        kept = (bracket_of(one.curve.held(self.rules.wanted))[0] for one in others)
        return any(low is not None and low >= failed for low in kept)

    def _curve(self, topology: str) -> Curve:
        """Of the rates at which each seed has a valid run."""
        points: dict[float, dict[int, Counts]] = defaultdict(dict)
        for run in self.runs:
            if run.topology == topology and not run.invalid:
                points[run.rate][run.seed] = (run.num_good, run.num_sent)
        return Curve(
            {rate: found for rate, found in points.items() if len(found) == len(self.rules.seeds)}
        )

    def _stopped(self, topology: str) -> str:
        """Of the rate that has no valid run of some seed."""
        valid = self._curve(topology).points
        reasons = [
            f"at {run.rate:g}/s {run.invalid}"
            for run in self.runs
            if run.topology == topology and run.invalid and run.rate not in valid
        ]
        return reasons[-1] if reasons else ""
