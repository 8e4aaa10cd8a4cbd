"""Where a decode step's time goes on the GPU, from the kernels of a profiler's trace.

Kernels of one step overlap where the device allows it (programmatic dependent launch): one that
waits for the one before it runs, but adds nothing. What a kernel adds is the time from the end of
all that began before it, or from its own start, to its own end; with the idle time these add up to
the step.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from services.cli.bench.engine.steps.gap import STEP_KERNEL, Kernel

IDLE = "(idle)"
NAME_LENGTH = 60


@dataclass(frozen=True)
class StepPart:
    """All launches of one kernel in a step, on average."""

    name: str
    launches: float
    adds_us: float
    runs_us: float
    """from start to end; more than it adds where it waits for another"""

    def record(self) -> dict[str, Any]:
        return {
            "kernel": self.name,
            "launches": round(self.launches, 2),
            "adds_us": round(self.adds_us, 2),
            "runs_us": round(self.runs_us, 2),
        }


def step_parts(kernels: Iterable[Kernel], num_steps: int) -> list[StepPart]:
    """Of the last `num_steps` whole steps, those that add most first."""
    ordered = sorted(kernels)
    starts = [index for index, kernel in enumerate(ordered) if STEP_KERNEL in kernel.name]
    num_steps = min(num_steps, len(starts) - 1)
    if num_steps < 1:
        return []
    first, end = starts[-1 - num_steps], starts[-1]
    busy_until = max((kernel.end_us for kernel in ordered[:first]), default=ordered[first].start_us)
    busy_until = max(busy_until, ordered[first].start_us)
    adds, runs = defaultdict[str, float](float), defaultdict[str, float](float)
    launches = defaultdict[str, int](int)
    for kernel in ordered[first:end]:
        name = kernel.name
        launches[name] += 1
        runs[name] += kernel.end_us - kernel.start_us
        adds[IDLE] += max(0.0, kernel.start_us - busy_until)
        adds[name] += max(0.0, kernel.end_us - max(kernel.start_us, busy_until))
        busy_until = max(busy_until, kernel.end_us)
    adds[IDLE] += max(0.0, ordered[end].start_us - busy_until)
    parts = [
        StepPart(name, launches[name] / num_steps, us / num_steps, runs[name] / num_steps)
        for name, us in adds.items()
    ]
    return sorted(parts, key=lambda part: -part.adds_us)


def render_parts(parts: Sequence[StepPart]) -> str:
    """A table; names are cut."""
    total_us = sum(part.adds_us for part in parts)
    lines = [f"{'kernels of a step':<{NAME_LENGTH}}  launches  adds us      %  runs us"]
    for part in parts:
        lines.append(
            f"{part.name[:NAME_LENGTH]:<{NAME_LENGTH}}  {part.launches:8.1f}  {part.adds_us:7.1f}"
            f"  {100 * part.adds_us / total_us:5.1f}  {part.runs_us:7.1f}"
        )
    lines.append(f"{'total':<{NAME_LENGTH}}  {'':8}  {total_us:7.1f}")
    return "\n".join(lines) + "\n"
