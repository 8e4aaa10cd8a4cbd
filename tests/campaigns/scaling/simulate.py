"""Scaling policies on simulated days, and what is claimed of the product's: `make simulate`.

    python -m tests.campaigns.scaling.simulate [--source azure-code --source FILE ...] [--seeds 3]

Each load is run by each policy with each seed, free and with a joint budget of GPUs; so is a week
of a load that stays within 10 %, by the product's policy. The table and the verdict go to the
output. `--lines FILE` keeps each outcome as it comes, and a second run goes
on from there. Exit code 1: a claim does not hold.
"""

import argparse
import json
import random
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path

from services.autoscaler.view import Arrival
from services.simulator.cell import Setup, with_budget
from services.simulator.loads import Load, first_workers, make_load, simulate
from services.simulator.outcome import Outcome
from services.simulator.traces.superposition import Day
from services.simulator.worker_kind import PREFILL
from tests.campaigns.scaling.claims import NAME, Form, claims, form_of, points

TARGETS = (0.9, 0.95, 0.97, 0.98, 0.99, 0.995)
FREE = (
    *(f"replay-{target:g}" for target in reversed(TARGETS)),
    "foresight-0.99",
    *(f"hpa-{target:g}" for target in (0.5, 0.6, 0.7, 0.8)),
    *("keda", "keda-hpa", "planner"),
)
BUDGETED = ("replay-0.99", "foresight-0.99")
BUDGET = 12
STEADY = "steady"
WEEK_H = 168.0
STEADY_WORKERS = 2.4
STEADY_TOKENS = (8_000, 24_000)
"""of a prompt: large ones, so that a week is a million of them"""


@dataclass(frozen=True)
class Task:
    """One run."""

    source: str
    seed: int
    hours: float
    budget: int
    policy: str

    @property
    def key(self) -> str:
        """The same in another process."""
        return json.dumps(asdict(self))

    def run(self) -> Outcome:
        length_s = 900.0 + 3600 * self.hours
        if self.source == STEADY:
            load = steady_load(length_s, self.seed)
        else:
            load = make_load(self.source, length_s, self.seed, Day())
        setup = Setup(first_workers(load, decodes=self.budget > 0), seed=self.seed)
        if self.budget:
            setup = with_budget(setup, self.budget)
        return simulate(self.policy, setup, load)


def steady_load(length_s: float, seed: int) -> Load:
    """Each minute has a rate of its own, within 10 % of the mean."""
    rng = random.Random(seed)  # noqa: S311
    mean_s = sum(STEADY_TOKENS) / 2 * PREFILL.token_s / STEADY_WORKERS
    arrivals: list[Arrival] = []
    for minute in range(int(length_s // 60)):
        rate_s, at_s = rng.uniform(0.9, 1.1) / mean_s, 60.0 * minute
        while (at_s := at_s + rng.expovariate(rate_s)) < 60 * (minute + 1):
            arrivals.append(Arrival(at_s, rng.randrange(*STEADY_TOKENS)))
    return Load(STEADY, arrivals, length_s)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", action="append", default=[])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--hours", type=float, default=3.0)
    parser.add_argument("--steady-hours", type=float, default=WEEK_H)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--lines", type=Path, default=None)
    options = parser.parse_args()
    sources = options.source or ["azure-code", "mooncake"]
    tasks = list(_tasks(sources, range(1, options.seeds + 1), options.hours))
    steady = Task(STEADY, 1, options.steady_hours, 0, NAME)
    outcomes = _run([steady, *tasks], options.jobs, options.lines)
    holds = _tell(STEADY, [outcomes[steady]])
    for source in sources:
        for budget in (0, BUDGET):
            found = [
                outcomes[task]
                for task in tasks
                if task in outcomes and (task.source, task.budget) == (source, budget)
            ]
            load = f"{Path(source).stem}{f', {budget} GPUs' if budget else ''}"
            holds &= _tell(load, found, form_of(source))
    return 0 if holds else 1


def _tasks(sources: Sequence[str], seeds: Sequence[int], hours: float) -> Iterator[Task]:
    """What the verdict needs most comes first."""
    for seed in seeds:
        for names, budget in ((BUDGETED, 0), (BUDGETED, BUDGET), (FREE, 0)):
            for name in names:
                for source in sources:
                    if budget or names is BUDGETED or name not in BUDGETED:
                        yield Task(source, seed, hours, budget, name)


def _run(tasks: Sequence[Task], num_jobs: int, lines: Path | None) -> dict[Task, Outcome]:
    known = _read(lines)
    done = {task: known[task.key] for task in tasks if task.key in known}
    with ProcessPoolExecutor(num_jobs, max_tasks_per_child=1) as pool:
        waiting = {pool.submit(task.run): task for task in tasks if task not in done}
        for future in as_completed(waiting):
            task, outcome = waiting[future], future.result()
            done[task] = outcome
            sys.stderr.write(
                f"{len(done)}/{len(tasks)} {task.source} {task.seed} {task.budget} {task.policy}: "
                f"{100 * outcome.attainment:.2f} %, {outcome.pods:.2f} pods, "
                f"{outcome.reversals_an_hour:.1f} reversals an hour\n"
            )
            if lines is not None:
                with lines.open("a") as file:
                    file.write(json.dumps([task.key, asdict(outcome)]) + "\n")
    return done


def _read(lines: Path | None) -> dict[str, Outcome]:
    if lines is None or not lines.exists():
        return {}
    read = map(json.loads, lines.read_text().splitlines())
    return {key: Outcome(**fields) for key, fields in read}


def _tell(load: str, outcomes: Sequence[Outcome], form: Form = "azure") -> bool:
    """The table of one load, and whether all that is claimed of it holds."""
    out = sys.stdout.write
    out(f"\n{load}\n{'policy':16} {'attained':>9} {'pods':>6}  reversals an hour\n")
    for policy, (pods, share) in sorted(points(outcomes).items()):
        rates = [one.reversals_an_hour for one in outcomes if one.policy == policy]
        out(f"{policy:16} {100 * share:7.2f} % {pods:6.2f}  {max(rates):.1f} at most\n")
    found = claims(load, outcomes, form)
    for claim in found:
        out(f"{'holds' if claim.holds else 'FAILS'}  {claim.text}: {claim.value}\n")
    return all(claim.holds for claim in found)


if __name__ == "__main__":
    sys.exit(main())
