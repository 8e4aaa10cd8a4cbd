"""Before the first run: what the cells are, what is sent to them, and at which rate to begin."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from services.cli.bench.measure import progress_line
from services.cli.bench.serve.endpoint import EndpointFacts
from services.cli.bench.serve.load_points import input_lengths
from services.cli.bench.serve.loaded_endpoint import LoadedEndpoint
from services.cli.bench.serve.request_maker import request_maker
from services.cli.bench.verdict.cells import Cell, Cells
from services.cli.bench.verdict.contender import Contender, doubts
from services.cli.bench.verdict.contest import ContestRules
from services.cli.bench.verdict.point_maker import PointMaker
from services.cli.bench.verdict.search import rounded

FIRST_SHARE = 0.25
"""of the estimated capacity"""
FEWEST_REQUESTS = 10
"""of a run: a share of fewer is no share"""


@dataclass(frozen=True)
class Prepared:
    """What the contest goes by."""

    points: PointMaker
    rules: ContestRules
    cells: dict[str, Any]
    """what each contender told, by topology"""
    notes: Sequence[str]


async def prepare(
    arguments: argparse.Namespace, cells: Cells, contenders: Sequence[Contender]
) -> Prepared:
    """Looks at each cell once."""
    facts: dict[str, EndpointFacts] = {}
    told: dict[str, Any] = {}
    for contender in contenders:
        async with cells.turn(contender.topology) as cell:
            facts[contender.topology] = cell.endpoint.facts
            told[contender.topology] = _told(cell)
            if contender is contenders[-1]:
                points = PointMaker(arguments, await request_maker(arguments, [cell.endpoint]))
                first = arguments.rate or await _first_rate(arguments, cell.endpoint, points)
    both = {one.side: facts[one.topology] for one in contenders}
    notes = doubts(both) if contenders[0].plan is None else []
    return Prepared(points, _rules(arguments, contenders, first), told, notes)


def _rules(
    arguments: argparse.Namespace, contenders: Sequence[Contender], first_rate: float
) -> ContestRules:
    lowest = FEWEST_REQUESTS / arguments.duration
    return ContestRules(
        sides={one.topology: one.side for one in contenders},
        seeds=list(range(arguments.seed, arguments.seed + arguments.seeds)),
        first_rate=max(rounded(first_rate), lowest),
        wanted=arguments.attainment,
        lowest_rate=lowest,
        most_points=arguments.points,
    )


async def _first_rate(
    arguments: argparse.Namespace, endpoint: LoadedEndpoint, points: PointMaker
) -> float:
    """A quarter of the rate at which each worker computes prompts without a pause."""
    seed = arguments.seed
    point, _ = points.at(FEWEST_REQUESTS / arguments.duration, seed)
    lengths = input_lengths([point])
    await endpoint.measure_idle(points.prompts(seed), lengths)
    assert endpoint.ideal is not None
    prefill, num_servers = endpoint.ideal.prefill, endpoint.ideal.num_servers
    capacity = num_servers / fmean(prefill.seconds(length) for length in lengths)
    progress_line.keep(
        f"{num_servers} workers, idle prefill {prefill.text}: about {capacity:.3g} prompts/s"
    )
    return FIRST_SHARE * capacity


def _told(cell: Cell) -> dict[str, Any]:
    plan = cell.contender.plan
    return {
        **cell.endpoint.facts.record(cell.endpoint.endpoint),
        "side": cell.contender.side,
        "plan": plan.summary if plan is not None else None,
    }
