"""Idle GPU time between the steps of a decode, from the kernels of a profiler's trace.

A step begins with the kernel whose name contains STEP_KERNEL, launched by itself; the model's
follow, as one graph. Its host gap is the time from the end of the last kernel before it, of
whatever stream, to its own start, and from its end to the start of the next; a kernel that starts
while another still runs (programmatic dependent launch) leaves no gap. Copies are not kernels: a
gap that the host fills with one is still a gap.
"""

import gzip
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from shared.errors import BatonError

STEP_KERNEL = "prepare_step"
MIN_STEPS = 2


class Kernel(NamedTuple):
    """One launch on the GPU; microseconds."""

    start_us: float
    end_us: float
    name: str


@dataclass(frozen=True)
class StepGaps:
    """Of consecutive steps."""

    gaps_us: tuple[float, ...]
    """of each step but the first"""
    steps_us: tuple[float, ...]
    """from one step's first kernel to the next step's"""

    @property
    def num_steps(self) -> int:
        return len(self.gaps_us)

    @property
    def median_us(self) -> float:
        return median(self.gaps_us)

    @property
    def p99_us(self) -> float:
        """Nearest rank."""
        return sorted(self.gaps_us)[ceil(0.99 * len(self.gaps_us)) - 1]

    @property
    def share(self) -> float:
        """Of a step: median over median."""
        return self.median_us / median(self.steps_us)


def step_gaps(kernels: Iterable[Kernel], num_steps: int | None = None) -> StepGaps:
    """Of the last `num_steps` steps, all when None. BatonError if there are not two steps."""
    gaps: list[float] = []
    starts: list[float] = []
    busy_until, began = float("-inf"), False
    for kernel in sorted(kernels):
        idle_us = max(0.0, kernel.start_us - busy_until)
        if STEP_KERNEL in kernel.name:
            if starts:
                gaps.append(idle_us)
            starts.append(kernel.start_us)
        elif began and gaps:
            gaps[-1] += idle_us
        began = STEP_KERNEL in kernel.name
        busy_until = max(busy_until, kernel.end_us)
    if len(starts) < MIN_STEPS:
        raise BatonError(
            f"the trace has {len(starts)} kernels named {STEP_KERNEL}: steps cannot be told apart"
        )
    steps = [end - start for start, end in pairwise(starts)]
    keep = slice(None) if num_steps is None else slice(-num_steps, None)
    return StepGaps(tuple(gaps[keep]), tuple(steps[keep]))


def kernels_of(path: Path) -> list[Kernel]:
    """The kernels of a Chrome trace, gzipped or not; BatonError if it is none."""
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8") as file:
            content = json.load(file)
        return _kernels(content["traceEvents"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BatonError(f"{path}: not a readable trace: {error}") from error


def _kernels(events: Sequence[dict[str, Any]]) -> list[Kernel]:
    return [
        Kernel(float(event["ts"]), float(event["ts"]) + float(event["dur"]), str(event["name"]))
        for event in events
        if event.get("ph") == "X" and event.get("cat") == "kernel"
    ]
