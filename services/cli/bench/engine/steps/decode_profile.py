"""A torch profiler's trace of decode steps, and the host gap it shows."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from services.cli.bench.engine.baton_subject import BatonSubject
from services.cli.bench.engine.figures.figure import Figure
from services.cli.bench.engine.figures.known import Known
from services.cli.bench.engine.steps.gap import Kernel, StepGaps, step_gaps
from services.cli.bench.engine.steps.scrapes import scraping
from services.cli.bench.engine.workload import RandomPrompts
from shared.engine.engine import Engine
from shared.engine.handover.output import StepOutput
from shared.errors import BatonError

NUM_STEPS = 200
LEAD_STEPS = 16
"""decoded before the trace begins: the profiler's own start disturbs the first"""
TAIL_STEPS = 4
"""decoded after it: a step may be reported while the next one runs; and one for each sequence,
since they do not all begin in the same step"""
SCRAPED_SEQUENCES, SCRAPED_ON_CPU = 64, 4
MAX_SHARE = 0.03
MAX_P99_US = 200.0
GOAL = "the goal"


@dataclass(frozen=True)
class Profiled:
    """A decode that is traced."""

    name: str
    """of the cell and of the file"""
    num_sequences: int
    num_prompt: int
    num_steps: int
    scrape_hz: float = 0.0
    """how often another process renders metrics meanwhile; 0: never"""

    @property
    def num_output(self) -> int:
        return LEAD_STEPS + self.num_steps + TAIL_STEPS + self.num_sequences

    @property
    def longest(self) -> int:
        return self.num_prompt + self.num_output


def profiled(device_type: str, num_prompt: int, scrape_hz: float) -> list[Profiled]:
    """One sequence; and with scrapes many. Small on a CPU, whose traces show operations only."""
    steps, length = (8, min(num_prompt, 16)) if device_type == "cpu" else (NUM_STEPS, num_prompt)
    wanted = [Profiled("host-gap-1", 1, length, steps)]
    if scrape_hz:
        num = SCRAPED_ON_CPU if device_type == "cpu" else SCRAPED_SEQUENCES
        wanted.append(Profiled(f"host-gap-{num}-scraped", num, length, steps, scrape_hz))
    return wanted


def write_trace(
    subject: BatonSubject,
    prompts: RandomPrompts,
    wanted: Profiled,
    device: torch.device,
    path: Path,
) -> None:
    """Decode, and write a Chrome trace."""
    activity = ProfilerActivity.CUDA if device.type == "cuda" else ProfilerActivity.CPU
    tracer = profile(activities=[activity], acc_events=True)
    num_done = 0

    def trace(engine: Engine, output: StepOutput) -> None:
        nonlocal num_done
        if len(output.tokens) == wanted.num_sequences and not output.chunks:
            num_done += 1
            if num_done == LEAD_STEPS:
                tracer.start()
            elif num_done == LEAD_STEPS + wanted.num_steps + 1:
                tracer.stop()

    subject.run(prompts.equal(wanted.num_sequences, wanted.num_prompt, 2))
    with contextlib.ExitStack() as stack:
        if wanted.scrape_hz:
            stack.enter_context(subject.watched(stack.enter_context(scraping(wanted.scrape_hz))))
        stack.enter_context(subject.watched(trace))
        subject.run(prompts.equal(wanted.num_sequences, wanted.num_prompt, wanted.num_output))
    if num_done <= LEAD_STEPS + wanted.num_steps:
        raise BatonError(f"only {num_done} steps decoded all {wanted.num_sequences} sequences")
    tracer.export_chrome_trace(str(path))


def gap_figures(
    model: str, wanted: Profiled, kernels: Sequence[Kernel], path: Path
) -> list[Figure]:
    """The host gap's p99 and its share of a step, as the trace at `path` has them."""
    gaps = step_gaps(kernels, wanted.num_steps)
    scraped_text = f", metrics rendered at {wanted.scrape_hz:g} Hz" if wanted.scrape_hz else ""
    text = (
        f"idle GPU time between two steps, {gaps.num_steps} steps of {wanted.num_sequences} "
        f"sequences{scraped_text}"
    )
    p99 = Known(MAX_P99_US / 1e3, MAX_P99_US / 1e3, name=GOAL)
    share = Known(100 * MAX_SHARE, 100 * MAX_SHARE, name=GOAL)
    more = _more(gaps) | {"trace": str(path)}
    return [
        Figure("P15", model, f"{wanted.name}-p99", gaps.p99_us / 1e3, "ms", text, known=p99),
        Figure(
            "P15",
            model,
            f"{wanted.name}-share",
            100 * gaps.share,
            "%",
            f"median of it over the median step of {more['step_ms']} ms",
            known=share,
            more=more,
        ),
    ]


def _more(gaps: StepGaps) -> dict[str, float | int | str | None]:
    return {
        "gap_p50_ms": round(gaps.median_us / 1e3, 5),
        "gap_p99_ms": round(gaps.p99_us / 1e3, 5),
        "step_ms": round(sum(gaps.steps_us) / gaps.num_steps / 1e3, 4),
        "num_steps": gaps.num_steps,
    }
