"""`baton chaos`: faults in a real cell of this machine, under load, and what its clients saw."""

import argparse
import asyncio
import json
import os
import random
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from services.cli.bench.serve.endpoint import Endpoint, look_up
from services.cli.chaos.campaign import Outcome, Plan, run_campaign, watch
from services.cli.chaos.cell import GATEWAYS, ROLES, faulted_cell, wired
from services.cli.chaos.kinds import KINDS, chosen_kinds, possible
from services.cli.chaos.poison import PLANTED
from services.cli.chaos.report import explain, is_clean, read_runs, record, render
from services.cli.chaos.wires.wire import Wire
from services.cli.cluster.local_cell import this_machine, until_stopped
from services.cli.cluster.model_check import check_model
from services.cli.cluster.output import Output
from services.cli.cluster.plan import Plan as CellPlan
from services.cli.cluster.plan import make_plan
from services.cli.flags import add_settings, given_settings, refuse_settings
from services.cli.gateway_client import GatewayClient
from shared.errors import BatonError, SettingsError

SETTINGS = ("model", "random_weights", "device", "transport", "kv_blocks", "threads")
NUM_FAULTS = 100
WATCH_S = 60.0
KV_BLOCKS = 192
"""few, so that blocks are used again and again"""
PAUSE_S = 1.5
DRAIN_S = 40.0
"""of a gateway or worker that is stopped: longer than an answer, as in a cluster. Of 320 tokens one
takes half a minute where others compute on the same cores"""
NUM_WORKERS = 2
"""of each role"""
EPILOG = (
    "exit code: 0 nothing was lost, wrong, leaked or billed twice, and the faults were seen to "
    "happen; 1 otherwise; 2 a flag is wrong. Kinds: " + ", ".join(kind.name for kind in KINDS)
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    add_settings(parser, SETTINGS, {"kv_blocks": f"{KV_BLOCKS}", "threads": "1"})
    add = parser.add_argument
    add("--faults", type=int, default=NUM_FAULTS, metavar="N", help="how many; 100")
    add("--seed", type=int, metavar="S", help="of everything that is drawn; default: a new one")
    add("--kinds", metavar="KIND[,KIND...]", help="only these")
    add("--pause-s", type=float, default=PAUSE_S, metavar="S", help="between two, on average; 1.5")
    add("--resume", type=Path, metavar="FILE", help="JSON lines: add this run to those in it")
    add(
        "--spare",
        metavar="NAME[,NAME...]",
        help="processes that no fault hits; tells how they grow",
    )
    add("--url", metavar="URL[,URL...]", help="gateways of a cell that you break yourself")
    add("--seconds", type=float, default=WATCH_S, metavar="S", help="with --url: for how long; 60")
    add("--log-dir", type=Path, metavar="D", help="one log file per process here")
    refuse_settings(parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.faults < 1 or arguments.pause_s < 0:
        raise SettingsError("--faults: at least 1; --pause-s: at least 0")
    before = read_runs(arguments.resume) if arguments.resume else []
    seed = random.SystemRandom().randrange(10**6) if arguments.seed is None else arguments.seed
    if arguments.url:
        outcome: Outcome | None = asyncio.run(
            _watch(arguments.url.split(","), seed, arguments.seconds)
        )
    else:
        outcome = _break(arguments, seed)
    if outcome is None:
        return 0
    line = record(outcome, seed)
    if arguments.resume:
        with arguments.resume.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
    sys.stdout.write(render([*before, line]))
    if is_clean(line):
        return 0
    for text in explain(outcome):
        _say(text)
    again = "" if arguments.url else f"; again with --faults {arguments.faults} --seed {seed}"
    raise BatonError(f"not clean{again}")


def _break(arguments: argparse.Namespace, seed: int) -> Outcome | None:
    """A cell of our own; None if it was stopped."""
    spared = _spared(arguments.spare)
    kinds, missing = possible(chosen_kinds(arguments.kinds), spares=bool(spared))
    for name, why in missing.items():
        _say(f"left out: {name}: {why}")
    if not kinds:
        raise SettingsError("--kinds: none of them can be had here")
    cell_plan = make_cell_plan(arguments)
    check_model(cell_plan)
    on_cpu = cell_plan.settings.compute.device == "cpu"
    plan = Plan(arguments.faults, seed, kinds, arguments.pause_s, on_cpu)
    return asyncio.run(until_stopped(run_plan(cell_plan, plan, spared, arguments.log_dir)))


def _spared(names: str | None) -> frozenset[str]:
    """SettingsError where there is no such process, or none of its kind is left for faults."""
    given = frozenset(name.strip() for name in names.split(",")) if names else frozenset()
    groups = (GATEWAYS, *([f"{role}-{index}" for index in range(NUM_WORKERS)] for role in ROLES))
    there = [name for group in groups for name in group]
    for name in given.difference(there):
        raise SettingsError(f"--spare: no {name!r}; there are {', '.join(there)}")
    for group in groups:
        if given.issuperset(group):
            raise SettingsError(f"--spare: {' and '.join(group)} leave nothing to hit")
    return given


def make_cell_plan(arguments: argparse.Namespace) -> CellPlan:
    flags: dict[str, Any] = {
        "device": "cpu",
        "kv_blocks": KV_BLOCKS,
        "threads": 1,
        **given_settings(arguments),
        "port": 0,
        "drain_s": DRAIN_S,
        "redis": "embedded",
        "planted_faults": PLANTED,
    }
    plan = make_plan(
        flags,
        os.environ,
        this_machine(),
        topology="pd",
        num_prefill=NUM_WORKERS,
        num_decode=NUM_WORKERS,
    )
    return replace(plan, most_drain_s=DRAIN_S)


async def run_plan(
    cell_plan: CellPlan,
    plan: Plan,
    spared: frozenset[str] = frozenset(),
    log_folder: Path | None = None,
) -> Outcome:
    """In a cell of its own. `spared`: names of gateways and workers that no fault hits."""
    output = Output(quiet=True, log_folder=log_folder, stream=sys.stderr)
    _say(f"starting {cell_plan.summary}; seed {plan.seed}")
    async with AsyncExitStack() as stack:
        wires: Sequence[Wire] = ()
        if any(kind.on_wires for kind in plan.kinds):
            cell_plan, wires = await stack.enter_async_context(wired(cell_plan))
        cell = await stack.enter_async_context(faulted_cell(cell_plan, output, spared, wires))
        status = await asyncio.to_thread(GatewayClient(cell.gateways[0].admin_url).status)
        return await run_campaign(cell, plan, status["model"], _say)


async def _watch(urls: list[str], seed: int, seconds: float) -> Outcome:
    endpoint = await asyncio.to_thread(look_up, Endpoint(urls[0]))
    return await watch(urls, endpoint.model, seed, seconds, _say)


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
