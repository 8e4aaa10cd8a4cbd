"""The load points of a run: what each sends, and under which name it is reported."""

import argparse
import random
from collections.abc import Sequence
from dataclasses import dataclass

from services.cli.bench.serve.flags import (
    given_prefill,
    read_arrivals,
    read_limits,
    read_list,
)
from services.cli.bench.serve.trace_file import TraceLine, read_trace, spread_equal_times
from services.cli.bench.serve.workload import Lengths, OpenLoop, Planner, fitting
from shared.errors import SettingsError


@dataclass(frozen=True)
class LoadPoint:
    """One run: a plan for an open loop, or a number of slots for a closed one."""

    label: str
    plan: OpenLoop | None = None
    slots: int = 0


@dataclass(frozen=True)
class TraceLoad:
    """What is sent of a trace."""

    lines: Sequence[TraceLine]
    notes: tuple[str, ...]


def check_load(arguments: argparse.Namespace) -> None:
    """SettingsError for what is wrong whatever the endpoint says."""
    given = [
        flag
        for flag, value in (
            ("--rate", arguments.rate),
            ("--trace", arguments.trace),
            ("--concurrency", arguments.concurrency),
        )
        if value is not None
    ]
    if len(given) > 1:
        raise SettingsError(f"{' and '.join(given)}: name one of them")
    if arguments.speed is not None and arguments.trace is None:
        raise SettingsError("--speed belongs to --trace")
    if arguments.shared_prefix < 0 or arguments.warmup < 0:
        raise SettingsError("--shared-prefix and --warmup: 0 or more")
    read_arrivals(arguments)
    read_limits(arguments)
    given_prefill(arguments)
    _numbers(arguments)
    Lengths.parse(arguments.input, "--input")
    Lengths.parse(arguments.output, "--output")


def read_trace_load(arguments: argparse.Namespace, max_model_len: int | None) -> TraceLoad:
    """The trace's requests that fit, with coarse timestamps spread; the notes say what was done."""
    lines = read_trace(arguments.trace)
    notes = []
    if not arguments.no_jitter:
        rng = random.Random(f"{arguments.seed} jitter")  # noqa: S311 a workload, no secret
        lines, num_moved = spread_equal_times(lines, rng)
        if num_moved:
            notes.append(
                f"{num_moved} requests of the trace share timestamps: spread at random up to the "
                "next one (--no-jitter keeps them)"
            )
    speed = min(_numbers(arguments))
    lines, num_left_out = fitting(lines, max_model_len, read_limits(arguments), speed)
    if num_left_out:
        notes.append(
            f"{num_left_out} requests of the trace do not fit into {max_model_len} tokens and "
            "were left out"
        )
    return TraceLoad(lines, tuple(notes))


def load_points(
    arguments: argparse.Namespace, planner: Planner, trace: TraceLoad | None
) -> list[LoadPoint]:
    """In the order in which they are run."""
    if trace is not None:
        name = arguments.trace.name
        return [
            LoadPoint(f"{name} at {speed:g}x", planner.of_trace(trace.lines, speed))
            for speed in _numbers(arguments)
        ]
    if arguments.concurrency is not None:
        return [LoadPoint(f"concurrency {num}", slots=int(num)) for num in _numbers(arguments)]
    arrivals, limits = read_arrivals(arguments), read_limits(arguments)
    return [
        LoadPoint(f"{arrivals.text} {rate:g}/s", planner.open_loop(arrivals, rate, limits))
        for rate in _numbers(arguments)
    ]


def _numbers(arguments: argparse.Namespace) -> Sequence[float]:
    """What tells the load points apart: speeds of a trace, slots, or rates."""
    if arguments.trace is not None:
        return read_list(arguments.speed or "1", "--speed", float)
    if arguments.concurrency is not None:
        return read_list(arguments.concurrency, "--concurrency", int)
    return read_list(arguments.rate or "1", "--rate", float)


def input_lengths(points: Sequence[LoadPoint]) -> list[int]:
    """Of all planned prompts; empty for closed loops."""
    plans = [point.plan.requests for point in points if point.plan is not None]
    return [planned.num_input for plan in plans for planned in plan]
