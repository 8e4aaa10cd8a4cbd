"""One ablation: each way in turn, the table, and whether all gave the same tokens."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from services.cli.bench.ablation.load import CPU, GPU, Load
from services.cli.bench.ablation.measurement import measure
from services.cli.bench.ablation.report import render_svg, render_text
from services.cli.bench.ablation.row import Row, differing, factors
from services.cli.bench.engine.engine_settings import engine_settings
from services.cli.bench.engine.model_choice import ModelChoice
from services.cli.bench.engine.placed_model import PlacedModel
from services.cli.bench.measure import progress_line
from services.cli.bench.measure.environment import machine_record
from shared.errors import BatonError, SettingsError

LEAST = {"requests": 2, "batch": 2, "shared": 0, "own": 1}


def run_ablation(arguments: argparse.Namespace, choice: ModelChoice) -> None:
    """Prints the table, and writes the files that the flags name. BatonError, after that, where the
    ways differ in their tokens."""
    placed = PlacedModel.of(choice, arguments.device, arguments.dtype)
    load = read_load(arguments, placed.device.type)
    settings = engine_settings(arguments, placed, load.longest, load.width)
    if load.longest > settings.compute.max_model_len:
        raise SettingsError(f"{placed.choice.name} has no room for {load.longest} tokens")
    rows = list(measure(placed, settings, load))
    progress_line.clear()
    _report(arguments, placed, load, rows)
    if faults := differing(rows):
        raise BatonError(f"the ways do not give the same tokens: {'; '.join(faults)}")


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


def _report(
    arguments: argparse.Namespace, placed: PlacedModel, load: Load, rows: Sequence[Row]
) -> None:
    found = factors(rows, load.width)
    environment = machine_record(arguments.command_line) | {
        "model": placed.choice.name,
        "dtype": placed.dtype,
        "device": placed.facts.name,
        "versions": placed.facts.versions,
        "requests": load.num_requests,
        "batch": load.width,
        "shared_tokens": load.num_shared,
        "own_tokens": load.num_own,
        "output_tokens": load.output,
    }
    lines = [environment, *(row.record(rows[0]) for row in rows)]
    lines += [factor.record() for factor in found]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    if arguments.plot is not None:
        arguments.plot.write_text(render_svg(rows, placed.choice.name), encoding="utf-8")
    if arguments.json == Path("-"):
        sys.stdout.write(text)
        return
    sys.stdout.write(render_text(rows, found))
    if arguments.json is not None:
        arguments.json.write_text(text, encoding="utf-8")
