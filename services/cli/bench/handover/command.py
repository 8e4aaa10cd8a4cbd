"""`baton bench handover`: what a hand-over adds, next to the same engine without one.

a prefill and a decode worker behind a gateway; one worker that does both behind another
-> copies between the pair's pools, next to one of contiguous bytes
-> each idle, in turn
-> the pair next to short streams, with a prompt behind each, with KV that moves at once
-> figures with their goals, and one hand-over moment by moment
"""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from services.cli.bench.handover.asked_cell import asked_cell
from services.cli.bench.handover.copy_rates import measure_copies
from services.cli.bench.handover.figures import find_figures, handed_over
from services.cli.bench.handover.measurement import (
    NUM_OUTPUT,
    Amounts,
    CellRun,
    measure_idle,
    measure_more,
    token_times_s,
)
from services.cli.bench.handover.timeline import Timeline, read_timeline, render_svg, render_text
from services.cli.bench.measure.environment import machine_record
from services.cli.bench.measure.findings import Finding, faults, render
from services.cli.bench.measure.result_files import check_files
from services.cli.bench.serve.prompts import PromptSource, TokenPrompts, safe_ids
from services.cli.cluster.local_cell import this_machine, until_stopped
from services.cli.cluster.plan import Plan, make_plan
from services.cli.flags import CELL_SETTINGS, add_settings, given_settings, refuse_settings
from shared.errors import BatonError, SettingsError
from shared.model.checkpoint import load_checkpoint, max_model_len
from shared.model.shapes import SHAPES
from shared.settings.load import changed

DEFAULT_MODEL = "tiny"
SEED = 0
CPU_LENGTHS, GPU_LENGTHS, QUICK_LENGTHS = (256, 1024), (1024, 8192), (64, 256)
NUM_REQUESTS, NUM_MOVES, NUM_STREAMS = 15, 5, 4
QUICK_REQUESTS, QUICK_MOVES = 3, 2
EPILOG = (
    "exit code: 0; 1 a request failed, or a figure is INVALID because the client was late, with "
    "--strict also a missed goal (figures are shown all the same); 2 a flag is wrong"
)


@dataclass(frozen=True)
class Measured:
    """What came of both cells."""

    findings: Sequence[Finding]
    timeline: Timeline


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    add_settings(parser, CELL_SETTINGS, {"model": f"{DEFAULT_MODEL}, with random weights"})
    add = parser.add_argument
    add("--lengths", metavar="N[,N...]", help="prompt tokens; 256,1k on a CPU, 1k,8k on GPUs")
    add("--requests", type=int, metavar="N", help=f"per length, each way; {NUM_REQUESTS}")
    add("--streams", type=int, default=NUM_STREAMS, metavar="N", help="of the load; 4")
    add("--quick", action="store_true", help="short prompts, few requests")
    add("--apart", action="store_true", help="start the second cell when the first has ended")
    add("--strict", action="store_true", help="exit with 1 when a goal is missed")
    add("--json", type=Path, metavar="FILE", help="JSON lines; - is the output")
    add("--plot", type=Path, metavar="FILE.svg", help="the timeline of one hand-over")
    refuse_settings(parser)


def run(arguments: argparse.Namespace) -> int:
    check_files(arguments.json, arguments.plot)
    plans = make_plans(arguments)
    pd, agg = plans
    amounts = read_amounts(arguments, on_gpus=pd.num_gpus > 0)
    prompts = prompts_for(pd, amounts)
    copies = measure_copies(pd, quick=arguments.quick)
    measure = _measure_apart if arguments.apart else _measure_in_turn
    measured = asyncio.run(until_stopped(measure(plans, amounts, prompts)))
    if measured is None:
        return 0
    measured = replace(measured, findings=[*measured.findings, *copies])
    _report(arguments, pd, agg, measured)
    failed = faults(measured.findings, strict=arguments.strict)
    if failed:
        raise BatonError("; ".join(failed))
    return 0


def make_plans(arguments: argparse.Namespace) -> tuple[Plan, Plan]:
    """The pair, and one worker that does both with the same engine: threads too are the pair's.
    A shape by name has random weights, as it has no others."""
    flags = {"model": DEFAULT_MODEL, **given_settings(arguments), "port": 0}
    if flags["model"] in SHAPES and not Path(flags["model"]).is_dir():
        flags["random_weights"] = True
    machine = this_machine()
    pd = make_plan(flags, os.environ, machine, topology="pd", num_prefill=1, num_decode=1)
    flags["threads"] = pd.settings.engine.threads
    agg = make_plan(flags, os.environ, machine, topology="agg", num_decode=1)
    if not arguments.apart:
        # The other cell starts on what the pair leaves of the first GPU.
        share = pd.settings.kv.gpu_memory_utilization / 2
        pd = replace(pd, settings=changed(pd.settings, gpu_memory_utilization=share))
    return pd, agg


def read_amounts(arguments: argparse.Namespace, *, on_gpus: bool) -> Amounts:
    lengths: tuple[int, ...] = GPU_LENGTHS if on_gpus else CPU_LENGTHS
    num_requests, num_moves = NUM_REQUESTS, NUM_MOVES
    if arguments.quick:
        lengths, num_requests, num_moves = QUICK_LENGTHS, QUICK_REQUESTS, QUICK_MOVES
    if arguments.lengths is not None:
        lengths = read_lengths(arguments.lengths)
    if arguments.requests is not None:
        num_requests = arguments.requests
    if num_requests < 2:
        raise SettingsError(f"--requests {num_requests}: at least 2")
    if arguments.streams < 1:
        raise SettingsError(f"--streams {arguments.streams}: at least 1")
    return Amounts(lengths, num_requests, num_moves, arguments.streams)


def read_lengths(text: str) -> tuple[int, ...]:
    """`256,1k`, where k is 1024; ascending, each once."""
    try:
        values = [
            int(part[:-1]) * 1024 if part.endswith("k") else int(part)
            for part in text.lower().split(",")
        ]
    except ValueError:
        raise SettingsError(f"--lengths {text}: numbers like 256,1k") from None
    if min(values) < 1:
        raise SettingsError(f"--lengths {text}: at least 1")
    return tuple(sorted(set(values)))


def prompts_for(plan: Plan, amounts: Amounts) -> Callable[[], PromptSource]:
    """Makes the same random prompts for each cell. ModelError, MissingError or SettingsError for
    a model that cannot be served, or not with prompts this long."""
    model, longest = plan.settings.model, max(amounts.lengths)
    checkpoint = load_checkpoint(model.name, random_weights=model.random_weights)
    limit = max_model_len(checkpoint.config, plan.settings.compute.max_model_len)
    if longest + NUM_OUTPUT > limit:
        raise SettingsError(
            f"--lengths: {longest} tokens and {NUM_OUTPUT} of output do not fit into the {limit} "
            f"of {model.name}"
        )
    ids = safe_ids(checkpoint.config.vocab_size)
    return lambda: TokenPrompts(ids, SEED)


async def _measure_in_turn(
    plans: tuple[Plan, Plan], amounts: Amounts, prompts: Callable[[], PromptSource]
) -> Measured:
    """Both cells are there at once, and prefill's GPU is that of the other cell's worker. GPUs
    differ, and one that is warm computes slower: of two runs, one after the other, no millisecond
    can be told."""
    pd, agg = plans
    async with asked_cell(pd) as pair, asked_cell(agg) as alone:
        source = prompts()
        with_handover, without = await measure_idle((pair, alone), source, amounts)
        await measure_more(pair, source, amounts, with_handover)
    return _measured(pd, with_handover, without, amounts)


async def _measure_apart(
    plans: tuple[Plan, Plan], amounts: Amounts, prompts: Callable[[], PromptSource]
) -> Measured:
    """One cell after the other, each with the whole machine."""
    pd, agg = plans
    async with asked_cell(pd) as pair:
        source = prompts()
        [with_handover] = await measure_idle((pair,), source, amounts)
        await measure_more(pair, source, amounts, with_handover)
    async with asked_cell(agg) as alone:
        [without] = await measure_idle((alone,), prompts(), amounts)
    return _measured(pd, with_handover, without, amounts)


def _measured(pd: Plan, with_handover: CellRun, without: CellRun, amounts: Amounts) -> Measured:
    findings = find_figures(with_handover, without, on_gpus=pd.num_gpus > 0)
    return Measured(findings, _timeline(with_handover, amounts.lengths[-1]))


def _timeline(run: CellRun, length: int) -> Timeline:
    """Of the last measured request of this length."""
    timed = [one for one in handed_over(run.idle[length]) if token_times_s(one.sample)]
    last = timed[-1]
    token_2_ns = round(token_times_s(last.sample)[1] * 1e9) + last.clock_offset_ns
    return read_timeline(last.receipt, token_2_ns)


def _report(arguments: argparse.Namespace, pd: Plan, agg: Plan, measured: Measured) -> None:
    environment: dict[str, Any] = machine_record(arguments.command_line) | {
        "model": pd.settings.model.name,
        "transport": pd.settings.handover.transport,
        "pd": pd.summary,
        "agg": agg.summary,
    }
    figures = [finding.record() for finding in measured.findings]
    lines = [environment, *figures, measured.timeline.record()]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    if arguments.plot is not None:
        arguments.plot.write_text(render_svg(measured.timeline), encoding="utf-8")
    if arguments.json == Path("-"):
        sys.stdout.write(text)
        return
    sys.stdout.write(f"{render(measured.findings)}\n{render_text(measured.timeline)}")
    sys.stdout.write(f"load average at the end: {environment['load_average']}\n")
    if arguments.json is not None:
        arguments.json.write_text(text, encoding="utf-8")
