"""Measures one cell of one subject.

A cell is warmed up first with other prompts, until nothing is compiled or captured while the
clock runs; then its runs, each with prompts that were never there before; then its checks.
"""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from services.cli.bench.engine.cells import Cell, DecodeCell, OfflineCell, PrefillCell
from services.cli.bench.engine.checks import Reading, check_phases, check_reading, check_runs
from services.cli.bench.engine.figures.figure import Check, Figure
from services.cli.bench.engine.figures.floors import Floors
from services.cli.bench.engine.figures.known import Known
from services.cli.bench.engine.subject import Run, Subject
from services.cli.bench.engine.workload import RandomPrompts, Workload, mixed_workload

NUM_ROUNDS = 3
"""of a small decode cell"""
WARM_PROMPT, WARM_OUTPUT = 8, 4


@dataclass(frozen=True)
class Timed:
    """What was run for one cell, and what came out."""

    workloads: tuple[Workload, ...]
    runs: tuple[Run, ...]
    value: float
    unit: str
    floor: float
    text: str
    more: Mapping[str, float | int | str | None]
    checks: tuple[Check, ...] = ()
    """besides those of all cells"""


@dataclass(frozen=True)
class Bench:
    """What all cells of one run share."""

    subject: Subject
    model: str
    floors: Floors
    cache_bytes: int | None
    """L2 cache of a GPU"""
    step_tokens: int
    """tokens a step may compute"""
    block_size: int
    prompts: RandomPrompts

    def measure(self, cell: Cell) -> Timed:
        """BatonError if a sequence fails."""
        if isinstance(cell, DecodeCell):
            return self._decode(cell)
        return self._prefill(cell) if isinstance(cell, PrefillCell) else self._offline(cell)

    def figure(self, cell: Cell, timed: Timed, known: Known | None) -> Figure:
        """With every check; one that does not hold is in the figure."""
        of_runs = check_runs(timed.workloads, timed.runs, self.subject.vocab_size, self.block_size)
        return Figure(
            goal="P1",
            model=self.model,
            cell=cell.name,
            value=timed.value,
            unit=timed.unit,
            text=timed.text,
            floor=timed.floor,
            known=known,
            checks=(*of_runs, *timed.checks),
            more={"engine": self.subject.name, **timed.more},
        )

    def _decode(self, cell: DecodeCell) -> Timed:
        num, length = cell.num_sequences, cell.num_prompt
        self._warm_up(num, length)
        counts = (cell.num_steps + 1, 1) * _num_rounds(cell)
        workloads = [self.prompts.equal(num, length, count) for count in counts]
        runs = [self.subject.run(workload) for workload in workloads]
        long_s, short_s = (
            statistics.median(run.elapsed_s for run in runs[first::2]) for first in (0, 1)
        )
        value_s = (long_s - short_s) / cell.num_steps
        steps_s = [step for run in runs[::2] for step in run.steps_s]
        step_s = statistics.median(steps_s) if steps_s else None
        reading = Reading.of(self.floors.size, num, cell.mean_context)
        return Timed(
            workloads=tuple(workloads),
            runs=tuple(runs),
            value=value_s * 1e3,
            unit="ms",
            floor=self.floors.decode_step_s([cell.mean_context] * num) * 1e3,
            text=f"time per output token of {num} sequences with {length} prompt tokens each: "
            f"({cell.num_steps + 1} tokens - 1 token) / {cell.num_steps}",
            more={
                "num_sequences": num,
                "mean_context": cell.mean_context,
                "step_p50_ms": None if step_s is None else round(step_s * 1e3, 4),
                "prompts_ms": round(short_s * 1e3, 3),
                "num_rounds": _num_rounds(cell),
            },
            checks=(check_reading(reading, self.cache_bytes), check_phases(value_s, step_s)),
        )

    def _prefill(self, cell: PrefillCell) -> Timed:
        self._warm_up(1, cell.num_prompt)
        workloads = [self.prompts.equal(1, cell.num_prompt, 1) for _ in range(cell.num_rounds)]
        runs = [self.subject.run(workload) for workload in workloads]
        value_s = statistics.median(run.elapsed_s for run in runs)
        return Timed(
            workloads=tuple(workloads),
            runs=tuple(runs),
            value=value_s * 1e3,
            unit="ms",
            floor=self.floors.prefill_s(cell.num_prompt) * 1e3,
            text=f"one prompt of {cell.num_prompt} tokens to its first token",
            more={
                "num_rounds": cell.num_rounds,
                "prompt_tok_s": round(cell.num_prompt / value_s),
            },
        )

    def _offline(self, cell: OfflineCell) -> Timed:
        workload = self._offline_workload(cell)
        self._warm_up(cell.num_sequences, cell.num_prompt, workload.temperature)
        run = self.subject.run(workload)
        num_in, num_out = workload.num_prompt_tokens, workload.num_output_tokens
        num_counted = num_in + num_out if cell.num_output else num_out
        return Timed(
            workloads=(workload,),
            runs=(run,),
            value=num_counted / run.elapsed_s,
            unit="tok/s",
            floor=num_counted / self.floors.workload_s(workload.lengths),
            text=f"{cell.num_sequences} requests at once, {num_in} tokens in, {num_out} out, "
            f"temperature {workload.temperature:g}: "
            f"{'all' if cell.num_output else 'output'} tokens a second",
            more={
                "elapsed_s": round(run.elapsed_s, 3),
                "out_tok_s": round(num_out / run.elapsed_s),
            },
        )

    def _offline_workload(self, cell: OfflineCell) -> Workload:
        if cell.num_output:
            return self.prompts.equal(cell.num_sequences, cell.num_prompt, cell.num_output)
        return mixed_workload(cell.num_sequences, cell.num_prompt, self.subject.vocab_size)

    def _warm_up(self, num_sequences: int, num_prompt: int, temperature: float = 0.0) -> None:
        """Decode batches of up to `num_sequences`, and steps full of prompts of `num_prompt`."""
        short = self.prompts.draining(num_sequences, WARM_PROMPT, WARM_OUTPUT)
        self.subject.run(Workload(short.requests, temperature))
        num_full = min(num_sequences, 2 * self.step_tokens // num_prompt + 1)
        full = self.prompts.equal(num_full, num_prompt, 2)
        self.subject.run(Workload(full.requests, temperature))


def estimate_s(cell: Cell, floors: Floors) -> float:
    """How long a cell takes if everything is at its floor, warm-up included."""
    prompts_s = cell.num_sequences * floors.prefill_s(cell.num_prompt)
    if isinstance(cell, PrefillCell):
        return (1 + cell.num_rounds) * prompts_s
    if isinstance(cell, OfflineCell):
        num_output = cell.num_output or cell.num_prompt
        contexts = [cell.num_prompt + num_output / 2] * cell.num_sequences
        return prompts_s + num_output * floors.decode_step_s(contexts)
    step_s = floors.decode_step_s([cell.mean_context] * cell.num_sequences)
    return _num_rounds(cell) * (2 * prompts_s + cell.num_steps * step_s)


def _num_rounds(cell: DecodeCell) -> int:
    return NUM_ROUNDS if cell.is_small else 1
