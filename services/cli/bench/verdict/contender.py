"""What takes part: every split of N workers and N that do both, or two cells that run already."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from services.cli.bench.serve.endpoint import Endpoint, EndpointFacts
from services.cli.bench.verdict.core_sets import CoreSets, core_sets
from services.cli.bench.verdict.judgement import Side
from services.cli.cluster.plan import Machine, Plan, make_plan
from shared.errors import SettingsError
from shared.settings.load import changed

FEWEST_WORKERS = 2


@dataclass(frozen=True)
class Contender:
    """One topology: a cell that is started, or one that runs already."""

    topology: str
    side: Side
    plan: Plan | None = None
    endpoint: Endpoint | None = None


def planned_contenders(
    flags: Mapping[str, Any], machine: Machine, num_workers: int
) -> tuple[list[Contender], CoreSets | None]:
    """Cells of `num_workers` with the same engine settings, so with as much memory for KV; and
    the cores of their processes."""
    if num_workers < FEWEST_WORKERS:
        raise SettingsError(f"--workers {num_workers}: at least {FEWEST_WORKERS}, one of each role")
    sets = core_sets(os.sched_getaffinity(0), num_workers, flags.get("threads"))
    agg = make_plan(flags, os.environ, machine, topology="agg", num_decode=num_workers)
    threads = len(sets.workers[0]) if sets else agg.settings.engine.threads
    plans = [
        make_plan(
            flags,
            os.environ,
            machine,
            topology="pd",
            num_prefill=num,
            num_decode=num_workers - num,
        )
        for num in range(1, num_workers)
    ]
    found = [
        Contender(f"{one.num_prefill}P{one.num_decode}D", "pd", _threaded(one, threads))
        for one in plans
    ]
    found.append(Contender(f"{num_workers} aggregated workers", "agg", _threaded(agg, threads)))
    return found, sets


def running_contenders(pd: Endpoint, agg: Endpoint) -> list[Contender]:
    if (pd.host, pd.port, pd.path) == (agg.host, agg.port, agg.path):
        raise SettingsError(f"--url-pd and --url-agg are both {pd.url}; name two cells")
    return [Contender("pd", "pd", endpoint=pd), Contender("agg", "agg", endpoint=agg)]


def doubts(facts: Mapping[Side, EndpointFacts]) -> list[str]:
    """What may make two running cells unequal. SettingsError where they are."""
    pd, agg = facts["pd"], facts["agg"]
    notes = []
    if not pd.status or not agg.status:
        notes.append(
            "how many workers each cell has is not known, as a gateway does not show its status "
            "here: see to it that the hardware is equal"
        )
    elif (left := num_of(pd)) != (right := num_of(agg)):
        raise SettingsError(
            f"{left} workers at --url-pd and {right} at --url-agg: a verdict needs as many at each"
        )
    if pd.status and not any(one["role"] == "prefill" for one in pd.status["workers"]):
        notes.append("the cell at --url-pd has no prefill worker")
    for name in ("model", "version", "max_model_len"):
        ours, theirs = getattr(pd, name), getattr(agg, name)
        if ours != theirs:
            notes.append(f"{name} differs: {ours} at pd, {theirs} at agg")
    return notes


def num_of(facts: EndpointFacts) -> int:
    """Its workers."""
    return len(facts.status.get("workers", ()))


def _threaded(plan: Plan, threads: int) -> Plan:
    return replace(plan, settings=changed(plan.settings, threads=threads))
