"""`baton autoscaler simulate`: runs the policies on one load, and writes what they came to; or it
holds the simulator against a measured run."""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from services.autoscaler.view import Promise
from services.simulator.cell import WARM_S, Setup, with_budget
from services.simulator.loads import Load, busy_workers, first_workers, make_load, simulate
from services.simulator.measured_run import read_measured_run
from services.simulator.outcome import Outcome
from services.simulator.policies.catalogue import PLANNERS, SOME, candidate
from services.simulator.prediction import predict
from services.simulator.report.comparison import compared
from services.simulator.report.page import Report, rendered
from services.simulator.traces.superposition import Day
from shared.errors import SettingsError

SWEEP = (
    *(f"replay-{target:g}" for target in (0.9, 0.95, 0.97, 0.98, 0.995)),
    *("foresight-0.9", "foresight-0.95", "hpa-0.6", "hpa-0.8"),
)
"""more points of the frontier"""
STARTS_S = (20.0, 60.0, 90.0, 180.0, 300.0)
WAITS_S = (0.5, 1.0, 2.0, 5.0)


def run(options: Mapping[str, Any]) -> int:
    """SettingsError that names the flag."""
    if options["measured"]:
        return _predict(options)
    if options["swing"] > 1:
        raise SettingsError("--swing: above 1 the night would have less than no load")
    length_s = WARM_S + 3600 * options["hours"]
    day = Day(options["swing"], min(Day.period_s, 3600 * options["hours"]))
    load = make_load(options["trace"], length_s, options["seed"], day, options["copies"])
    if not load.arrivals:
        raise SettingsError(f"--trace {options['trace']}: nothing arrives in that time")
    setup = _setup(options, load)
    some = [name for name in SOME if name not in PLANNERS or setup.computes == "prefill"]
    names = list(dict.fromkeys(options["policy"] or some))
    names += [name for name in SWEEP if options["sweep"] and name not in names]
    for name in names:
        candidate(name, setup, load.arrivals)
    outcomes = [_told(name, setup, load) for name in names]
    sensitivity = _sensitivity(names[:3], setup, load) if options["sensitivity"] else {}
    report = Report(
        title=f"Scaling policies on {load.name}",
        facts=_facts(options, setup, load),
        arrivals=load.arrivals,
        length_s=length_s,
        limit_s=setup.promise.wait_s,
        outcomes=outcomes,
        budget=options["budget"],
        sensitivity=sensitivity,
    )
    path = Path(options["out"])
    try:
        path.write_text(rendered(report), encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"--out {path}: {error}") from error
    sys.stderr.write(f"wrote {path}\n")
    sys.stdout.write(_json(report) if options["json"] else _table(outcomes))
    return 0


def _predict(options: Mapping[str, Any]) -> int:
    """A measured run, next to what the simulator makes of it."""
    run = read_measured_run(Path(options["measured"]))
    prediction = predict(run, _promise(options))
    if options["json"]:
        sys.stdout.write(json.dumps(asdict(prediction)) + "\n")
    else:
        sys.stdout.write(compared(run, prediction))
    return 0


def _promise(options: Mapping[str, Any]) -> Promise:
    return Promise(options["slo_ttft_ms"] / 1000, options["slo_gap_ms"] / 1000)


def _setup(options: Mapping[str, Any], load: Load) -> Setup:
    budget = options["budget"]
    aggregated = options["topology"] == "agg"
    if options["decode"] and aggregated:
        raise SettingsError("--decode: workers of topology agg decode anyway: leave it out")
    if budget == 1 and not aggregated:
        raise SettingsError("--budget: a cell has a prefill and a decode worker at least")
    setup = Setup(
        first_workers(load, decodes=options["decode"] or budget > 0, aggregated=aggregated),
        start_s=options["start_s"],
        promise=_promise(options),
        seed=options["seed"],
    )
    return with_budget(setup, budget) if budget else setup


def _told(name: str, setup: Setup, load: Load, condition: str = "") -> Outcome:
    """One run, and a line of progress."""
    began_s = time.monotonic()
    outcome = simulate(name, setup, load)
    took_s = time.monotonic() - began_s
    sys.stderr.write(
        f"{name}{condition}: {100 * outcome.attainment:.2f} % in time, "
        f"{outcome.pod_hours:.1f} GPU-hours ({took_s:.0f} s)\n"
    )
    return outcome


def _sensitivity(
    names: Sequence[str], setup: Setup, load: Load
) -> dict[str, dict[str, list[tuple[float, Outcome]]]]:
    starts: dict[str, list[tuple[float, Outcome]]] = {name: [] for name in names}
    waits: dict[str, list[tuple[float, Outcome]]] = {name: [] for name in names}
    for name in names:
        for start_s in STARTS_S:
            changed = replace(setup, start_s=start_s)
            starts[name].append((start_s, _told(name, changed, load, f", start {start_s:g} s")))
        for wait_s in WAITS_S:
            changed = replace(setup, promise=replace(setup.promise, wait_s=wait_s))
            waits[name].append((wait_s, _told(name, changed, load, f", wait {wait_s:g} s")))
    return {"seconds to start a worker": starts, "seconds of wait that are promised": waits}


def _facts(options: Mapping[str, Any], setup: Setup, load: Load) -> list[tuple[str, str]]:
    busy = busy_workers(load.arrivals, load.length_s)
    promise = f"a wait of {setup.promise.wait_s:g} s"
    if "decode" in setup.first:
        promise += f", {1000 * setup.promise.gap_s:g} ms from token to token"
    return [
        ("arrivals", f"{len(load.arrivals):,}, seed {setup.seed}, swing {options['swing']:g}"),
        ("load", f"{busy:.2f} prefill workers' time on average"),
        ("promised", promise),
        ("workers", " and ".join(setup.first) if setup.computes == "prefill" else "do both"),
        ("a worker's start", f"{setup.start_s:g} s"),
        ("GPUs", str(options["budget"] or "as many as are ordered")),
        ("judged", f"{options['hours']:g} h after the first {WARM_S / 60:g} minutes"),
    ]


def _table(outcomes: Sequence[Outcome]) -> str:
    rows = [
        f"{one.policy:20} {100 * one.attainment:6.2f} %  {one.pod_hours:7.1f}  "
        f"{one.reversals_an_hour:6.1f}\n"
        for one in outcomes
    ]
    return f"{'policy':20} {'in time':>8}  GPU-h  reversals an hour\n{''.join(rows)}"


def _json(report: Report) -> str:
    found = {
        "title": report.title,
        "facts": dict(report.facts),
        "outcomes": [asdict(outcome) for outcome in report.outcomes],
    }
    return json.dumps(found) + "\n"
