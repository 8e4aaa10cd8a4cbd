"""A contest of modelled cells: as `baton bench verdict` runs it, without a process or a second."""

import random
from collections.abc import Mapping

import anyio

from services.cli.bench.serve.report.goodput import ServiceLimits
from services.cli.bench.verdict.contest import Contest, ContestRules
from services.cli.bench.verdict.topology_run import TopologyRun
from services.cli.bench.verdict.verdict import Verdict
from tests.support.models.load_cell import LoadCell, arrivals_ms

LIMITS = ServiceLimits(ttft_ms=300.0, gap_ms=200.0)
SECONDS = 30.0
ENVIRONMENT = {
    "baton": "1",
    "python": "3",
    "platform": "test",
    "num_cpus": 2,
    "unix_time_s": 0.0,
    "command": "baton bench verdict",
}


def verdict_of(
    cells: Mapping[str, LoadCell],
    luck: str = "",
    *,
    limits: ServiceLimits = LIMITS,
    wanted: float = 0.99,
    num_seeds: int = 3,
    late_above: float = float("inf"),
) -> Verdict:
    """`cells` by topology, the last one is agg. Another `luck`: other noise. Above the rate
    `late_above` the client is late."""
    *_, agg = cells
    rules = ContestRules(
        sides={name: "agg" if name == agg else "pd" for name in cells},
        seeds=list(range(num_seeds)),
        first_rate=6.0,
        wanted=wanted,
        lowest_rate=10 / SECONDS,
    )
    contest = Contest(rules)

    async def measure(topology: str, rate: float, seed: int, turn: int) -> TopologyRun:
        rng = random.Random(f"{luck} {topology} {rate} {seed} {turn}")  # noqa: S311 noise
        felt = cells[topology].felt(arrivals_ms(rate, seed, SECONDS), rng, limits)
        invalid = "sends were late" if rate > late_above else ""
        return TopologyRun(topology, rate, seed, turn, SECONDS, felt, invalid)

    anyio.run(contest.run, measure)
    told = {name: {"plan": name, "model": "m", "version": "1"} for name in cells}
    return Verdict({**ENVIRONMENT, "cells": told}, "a load", limits, contest)
