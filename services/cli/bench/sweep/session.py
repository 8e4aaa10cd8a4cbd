"""One sweep: measure the device, then batch after batch, then say where the knee is."""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from services.cli.bench.engine.baton_subject import BatonSubject
from services.cli.bench.engine.cells import DecodeCell
from services.cli.bench.engine.checks import PHASES
from services.cli.bench.engine.engine_settings import engine_settings
from services.cli.bench.engine.figures.floors import Floors
from services.cli.bench.engine.measurement import Bench
from services.cli.bench.engine.model_choice import ModelChoice
from services.cli.bench.engine.placed_model import PlacedModel
from services.cli.bench.engine.workload import RandomPrompts
from services.cli.bench.measure import progress_line
from services.cli.bench.measure.environment import machine_record
from services.cli.bench.sweep.knee import find_knee
from services.cli.bench.sweep.point import Point
from services.cli.bench.sweep.report import render_svg, render_text
from shared.engine.layers.kv_cache import TORCH_DTYPES
from shared.engine.loading.device_rates import measure_ceilings
from shared.engine.loading.devices import set_threads
from shared.errors import BatonError, SettingsError
from shared.settings.groups import Settings

CPU_BATCHES, GPU_BATCHES = "1,2,4,8,16,32", "1,2,4,8,16,32,64,128,256"
CPU_PROMPT, GPU_PROMPT = 48, 1024
CPU_STEPS, GPU_STEPS = 16, 128


def run_sweep(arguments: argparse.Namespace, choice: ModelChoice) -> None:
    """Prints the table, and writes the files that the flags name."""
    placed = PlacedModel.of(choice, arguments.device, arguments.dtype)
    cells = read_cells(arguments, placed.device.type)
    settings = engine_settings(
        arguments,
        placed,
        longest=cells[-1].longest,
        num_sequences=cells[-1].num_sequences,
        prefix_cache=False,
        eager=arguments.eager,
    )
    set_threads(settings.engine.threads, placed.device)  # the rates of as many as the engine has
    progress_line.announce(f"measuring what the device can do: {placed.facts.name}")
    floors = Floors(placed.size, measure_ceilings(placed.device, TORCH_DTYPES[placed.dtype]))
    points = list(measure(placed, settings, floors, cells))
    progress_line.clear()
    _report(arguments, placed, floors, points)


def read_cells(arguments: argparse.Namespace, device_type: str) -> list[DecodeCell]:
    """One for each batch, by size. SettingsError names the flag."""
    on_cpu = device_type == "cpu"
    text = arguments.batches or (CPU_BATCHES if on_cpu else GPU_BATCHES)
    try:
        batches = sorted(set(map(int, text.split(","))))
    except ValueError:
        raise SettingsError(f"--batches {text}: numbers like 1,2,4") from None
    num_prompt = arguments.prompt or (CPU_PROMPT if on_cpu else GPU_PROMPT)
    num_steps = arguments.steps or (CPU_STEPS if on_cpu else GPU_STEPS)
    if min(*batches, num_prompt, num_steps) < 1:
        raise SettingsError("--batches, --prompt and --steps: at least 1")
    return [DecodeCell(f"tpot-{batch}", batch, num_prompt, num_steps) for batch in batches]


def measure(
    placed: PlacedModel, settings: Settings, floors: Floors, cells: Sequence[DecodeCell]
) -> Iterator[Point]:
    """A point for each cell whose KV fits. BatonError if a sequence fails, or if what was run is
    not what was asked for."""
    subject = BatonSubject(placed.choice, *settings.of_engine)
    bench = Bench(
        subject=subject,
        model=placed.choice.name,
        floors=floors,
        cache_bytes=placed.facts.cache_bytes,
        step_tokens=settings.engine.tokens_per_step(placed.device.type),
        block_size=settings.kv.block_size,
        prompts=RandomPrompts(subject.vocab_size),
    )
    try:
        for cell in cells:
            batch = cell.num_sequences
            if cell.num_tokens > subject.num_kv_tokens:
                fits = f"{cell.num_tokens} positions, {subject.num_kv_tokens} fit"
                progress_line.keep(f"batches of {batch} and more left out: {fits}")
                return
            progress_line.announce(f"{batch} sequences of {cell.num_prompt} tokens")
            timed = bench.measure(cell)
            for check in bench.figure(cell, timed, None).failed:
                if check not in timed.checks:  # those tell of a busy machine, or of a small model
                    raise BatonError(f"a batch of {batch}: {check.name}: {check.text}")
            disturbed = any(one.name == PHASES and one.ok is False for one in timed.checks)
            step_s, context = timed.value / 1e3, cell.mean_context
            yield Point.of(batch, step_s, context, floors, disturbed=disturbed)
    finally:
        subject.close()


def _report(
    arguments: argparse.Namespace, placed: PlacedModel, floors: Floors, points: Sequence[Point]
) -> None:
    if not points:
        raise BatonError("no batch fits into the KV memory")
    knee, ceilings = find_knee([(one.batch, one.rate) for one in points]), floors.ceilings
    environment = machine_record(arguments.command_line) | {
        "model": placed.choice.name,
        "dtype": placed.dtype,
        "device": placed.facts.name,
        "versions": placed.facts.versions,
        "copy_gb_s": round(ceilings.copy_bytes_per_s / 1e9, 1),
        "matmul_tflops": round(ceilings.matmul_flops_per_s / 1e12, 3),
    }
    found = {"kind": "knee", "batch": knee.batch, "reached": knee.reached}
    lines = [environment, *(point.record() for point in points), found]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    if arguments.plot is not None:
        arguments.plot.write_text(render_svg(points, knee, placed.choice.name), encoding="utf-8")
    if arguments.json == Path("-"):
        sys.stdout.write(text)
        return
    sys.stdout.write(render_text(points, knee, ceilings))
    if arguments.json is not None:
        arguments.json.write_text(text, encoding="utf-8")
