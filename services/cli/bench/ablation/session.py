"""One ablation: each way in turn, the table, and whether all gave the same tokens."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from services.cli.bench.ablation.history import Run, add_run, read_runs
from services.cli.bench.ablation.load import CPU, GPU, Load
from services.cli.bench.ablation.measurement import measure
from services.cli.bench.ablation.movement import Movements
from services.cli.bench.ablation.outcome import Outcome
from services.cli.bench.ablation.report import render_svg, render_text
from services.cli.bench.ablation.row import differing
from services.cli.bench.engine.engine_settings import engine_settings
from services.cli.bench.engine.model_choice import ModelChoice
from services.cli.bench.engine.placed_model import PlacedModel
from services.cli.bench.measure import progress_line
from services.cli.bench.measure.environment import machine_record
from shared.errors import BatonError, SettingsError

ON_OUTPUT = Path("-")
LEAST = {"requests": 2, "batch": 2, "shared": 0, "own": 1}


def run_ablation(arguments: argparse.Namespace, choice: ModelChoice) -> None:
    """Prints the table, and writes the files that the flags name. BatonError, after that, where the
    ways differ in their tokens or a file could not be written."""
    earlier = () if arguments.history is None else read_runs(arguments.history)
    placed = PlacedModel.of(choice, arguments.device, arguments.dtype)
    load = read_load(arguments, placed.device.type)
    settings = engine_settings(arguments, placed, load.longest, load.width)
    if load.longest > settings.compute.max_model_len:
        raise SettingsError(f"{placed.choice.name} has no room for {load.longest} tokens")
    rows = list(measure(placed, settings, load))
    progress_line.clear()
    faults = _report(arguments, Outcome(placed, settings, load, rows, arguments.price), earlier)
    if found := differing(rows):
        faults = [f"the ways do not give the same tokens: {'; '.join(found)}", *faults]
    if faults:
        raise BatonError("; ".join(faults))


def read_load(arguments: argparse.Namespace, device_type: str) -> Load:
    """The device's, with what the flags change. SettingsError names the flag."""
    for flag, least in LEAST.items():
        value = getattr(arguments, flag)
        if value is not None and value < least:
            raise SettingsError(f"--{flag} {value}: at least {least}")
    load = CPU if device_type == "cpu" else GPU
    given = {
        "num_requests": arguments.requests,
        "width": arguments.batch,
        "num_shared": arguments.shared,
        "num_own": arguments.own,
        "output": None if arguments.output is None else _read_output(arguments.output),
    }
    load = replace(load, **{name: value for name, value in given.items() if value is not None})
    if load.width > load.num_requests:
        raise SettingsError(f"--batch {load.width}: there are {load.num_requests} requests")
    return load


def _read_output(text: str) -> tuple[int, int]:
    least, _, most = text.partition("-")
    try:
        low, high = int(least), int(most or least)
    except ValueError:
        raise SettingsError(f"--output {text}: lengths like 16-48") from None
    if not 2 <= low <= high:
        raise SettingsError(f"--output {text}: at least 2, the shortest first")
    return low, high


def _report(arguments: argparse.Namespace, outcome: Outcome, earlier: Sequence[Run]) -> list[str]:
    """To the output before any file, so that one that cannot be written takes no result along.
    Returns why files could not be."""
    environment = machine_record(arguments.command_line) | {
        "model": outcome.placed.choice.name,
        "dtype": outcome.placed.dtype,
        "device": outcome.placed.facts.name,
        "versions": outcome.placed.facts.versions,
        **outcome.load_record,
    }
    lines = [environment, *outcome.records()]
    text = render_text(outcome.figures, outcome.factors)
    run = outcome.run()
    if arguments.history is not None:
        moved = Movements(run, earlier)
        lines += [movement.record() for movement in moved.all()]
        text += f"\n{moved.text}"
    json_text = "".join(json.dumps(line) + "\n" for line in lines)
    sys.stdout.write(json_text if arguments.json == ON_OUTPUT else text)
    svg = render_svg(outcome.figures, outcome.placed.choice.name)
    faults = [
        "" if arguments.json == ON_OUTPUT else _fault_of("--json", arguments.json, json_text),
        _fault_of("--plot", arguments.plot, svg),
        _history_fault(arguments.history, run),
    ]
    return [fault for fault in faults if fault]


def _fault_of(flag: str, path: Path | None, text: str) -> str:
    """Why the file that the flag names could not be written; nothing where it was, or is not
    wanted."""
    try:
        if path is not None:
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        return f"{flag} {path}: cannot be written: {error}"
    return ""


def _history_fault(path: Path | None, run: Run) -> str:
    """The same, of the run's line."""
    try:
        if path is not None:
            add_run(path, run)
    except BatonError as error:
        return str(error)
    return ""
