"""`baton bench verdict`: whether prefill and decode apart serve a load better than together.

start equal cells, or look two up -> estimate a first rate -> rate after rate, in turns
-> goodput of each with its interval -> one sentence, and a file and a page that show why
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from services.cli.bench.measure import progress_line
from services.cli.bench.measure.environment import allow_many_sockets, machine_record
from services.cli.bench.serve.flags import read_service_limits
from services.cli.bench.verdict import flags as verdict_flags
from services.cli.bench.verdict.cells import CellsInTurn, HeldCells
from services.cli.bench.verdict.contender import (
    Contender,
    planned_contenders,
    running_contenders,
)
from services.cli.bench.verdict.contest import Contest
from services.cli.bench.verdict.core_sets import CoreSets
from services.cli.bench.verdict.measurement import Measurement
from services.cli.bench.verdict.preparation import Prepared, prepare
from services.cli.bench.verdict.report.page import rendered
from services.cli.bench.verdict.report.text import render
from services.cli.bench.verdict.verdict import Verdict, read_verdict
from services.cli.cluster.local_cell import this_machine, until_stopped
from services.cli.cluster.model_check import check_model
from services.cli.flags import given_settings
from shared.errors import BatonError

NO_VERDICT = 3
EPILOG = (
    "exit code: 0 a verdict; 1 a cell failed; 2 a flag is wrong; 3 no verdict, and the "
    "sentence says why; 4 nothing answers. --topology auto is not compared: it picks one of the two"
)
NOT_PINNED = (
    "too few cores for the client, each gateway and each worker to have their own: processes may "
    "have disturbed each other"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    verdict_flags.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.source is not None:
        verdict_flags.check_outputs(arguments)
        return _report(arguments, read_verdict(arguments.source))
    verdict_flags.check(arguments)
    allow_many_sockets()
    contenders, sets = _contenders(arguments)
    verdict = asyncio.run(_contest(arguments, contenders, sets))
    progress_line.clear()
    if verdict is None:
        raise BatonError("stopped before the first run")
    return _report(arguments, verdict)


def _contenders(arguments: argparse.Namespace) -> tuple[list[Contender], CoreSets | None]:
    urls = verdict_flags.read_urls(arguments)
    if urls is not None:
        return running_contenders(*urls), None
    num_workers = arguments.workers or verdict_flags.DEFAULT_WORKERS
    flags = {**given_settings(arguments), "port": 0}
    contenders, sets = planned_contenders(flags, this_machine(), num_workers)
    plan = contenders[0].plan
    assert plan is not None
    check_model(plan)
    return contenders, sets


async def _contest(
    arguments: argparse.Namespace, contenders: Sequence[Contender], sets: CoreSets | None
) -> Verdict | None:
    """A stop signal ends it before its time: then of the runs so far, None where there is none."""
    found: list[Verdict] = []

    async def run() -> None:
        async with _cells(arguments, contenders, sets) as cells:
            prepared = await prepare(arguments, cells, contenders)
            verdict = _verdict(arguments, prepared, contenders, sets)
            found.append(verdict)
            await verdict.contest.run(Measurement(cells, prepared.points, sets).run)

    await until_stopped(run())
    return found[0] if found and found[0].contest.runs else None


def _cells(
    arguments: argparse.Namespace, contenders: Sequence[Contender], sets: CoreSets | None
) -> HeldCells | CellsInTurn:
    plan = contenders[0].plan
    if plan is None or not plan.num_gpus:
        return HeldCells(arguments, contenders, sets)
    return CellsInTurn(arguments, contenders, sets)


def _verdict(
    arguments: argparse.Namespace,
    prepared: Prepared,
    contenders: Sequence[Contender],
    sets: CoreSets | None,
) -> Verdict:
    notes = list(prepared.notes)
    if contenders[0].plan is not None:
        notes.append(sets.text if sets is not None else NOT_PINNED)
    environment = machine_record(arguments.command_line) | {"cells": prepared.cells}
    limits = read_service_limits(arguments)
    return Verdict(environment, prepared.points.text, limits, Contest(prepared.rules), notes)


def _report(arguments: argparse.Namespace, verdict: Verdict) -> int:
    """Everything is written before the exit code says that there is no verdict."""
    stream = sys.stdout
    if arguments.json == Path("-"):
        sys.stdout.write(verdict.json)
        stream = sys.stderr
    elif arguments.json is not None:
        arguments.json.write_text(verdict.json, encoding="utf-8")
    stream.write(render(verdict))
    if arguments.report is not None:
        arguments.report.write_text(rendered(verdict), encoding="utf-8")
    return NO_VERDICT if verdict.judgement.decision == "no verdict" else 0
