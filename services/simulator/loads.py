"""A load: a trace or shape by name, copied under a day's swing, and the workers it keeps busy."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from services.autoscaler.view import Arrival, Role
from services.simulator.cell import KINDS, Setup, SimulatedCell
from services.simulator.outcome import Outcome, outcome_of
from services.simulator.policies.catalogue import candidate
from services.simulator.traces.recorded import read_trace
from services.simulator.traces.shapes import SHAPES
from services.simulator.traces.superposition import Day, superposed

FILE_WORKERS = 5.0
"""that the copies of a file keep busy at the height of the day, unless their number is given"""
AT_FIRST = 0.6
"""of the time those of the beginning are busy"""
SETTLE_S = 300.0


@dataclass(frozen=True)
class Load:
    """What arrives in one run."""

    name: str
    arrivals: Sequence[Arrival]
    length_s: float


def make_load(source: str, length_s: float, seed: int, day: Day, copies: int = 0) -> Load:
    """`source`: the name of a shape, or a file. `copies`: 0: as fits it."""
    shape = SHAPES.get(source)
    if shape:
        trace = shape.trace(max(3600.0, length_s), seed)
        copies = copies or shape.copies
    else:
        trace = read_trace(Path(source), seed)
        copies = copies or max(
            1, round(FILE_WORKERS / busy_workers(trace.arrivals, trace.length_s))
        )
    name = source if shape else Path(source).stem
    return Load(name, superposed(trace, copies, length_s, day, seed), length_s)


def busy_workers(arrivals: Sequence[Arrival], length_s: float) -> float:
    """Prefill workers that are busy all the time with it."""
    return sum(KINDS["prefill"].alone_s(arrival) for arrival in arrivals) / length_s


def first_workers(load: Load, *, decodes: bool, aggregated: bool = False) -> dict[Role, int]:
    """Of the beginning, the same for all policies. `aggregated`: as many that do both as there
    would be of two roles."""
    busy = busy_workers(load.arrivals, load.length_s)
    num_prefill = max(1, ceil(busy / AT_FIRST))
    num_decode = max(1, num_prefill // 2)
    if aggregated:
        return {"decode": num_prefill + num_decode}
    return {"prefill": num_prefill, "decode": num_decode} if decodes else {"prefill": num_prefill}


def simulate(policy: str, setup: Setup, load: Load) -> Outcome:
    """One run."""
    chosen = candidate(policy, setup, load.arrivals)
    cell = SimulatedCell(chosen.setup, load.arrivals, chosen.make())
    cell.run(load.length_s, SETTLE_S)
    return outcome_of(cell, policy, load.name)
