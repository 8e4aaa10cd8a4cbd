"""`baton bench engine` from its plan to its last figure.

    measure the device -> attention by itself (P2, P3) -> a worker's loop by itself (P15)
    -> load the engine -> its steps predicted (P15) -> cell after cell (P1) -> traced decodes (P15)
    -> an eager engine computes some cells' first tokens again

One engine holds the device at a time: what was there before is closed.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from services.cli.bench.engine.baton_subject import BatonSubject
from services.cli.bench.engine.cells import DecodeCell
from services.cli.bench.engine.checks import check_equal
from services.cli.bench.engine.figures.attention import attention_figures
from services.cli.bench.engine.figures.figure import Check, Figure
from services.cli.bench.engine.figures.floors import Floors
from services.cli.bench.engine.measurement import Bench, Timed, estimate_s
from services.cli.bench.engine.plan import BenchPlan
from services.cli.bench.engine.progress import Progress
from services.cli.bench.engine.steps.decode_profile import Profiled, gap_figures, write_trace
from services.cli.bench.engine.steps.gap import kernels_of
from services.cli.bench.engine.steps.parts import render_parts, step_parts
from services.cli.bench.engine.steps.step_prediction import step_prediction_figure
from services.cli.bench.engine.steps.worker_step import ESTIMATE_S, worker_step_figure
from services.cli.bench.engine.subject import Subject
from services.cli.bench.engine.vllm_subject import VllmSubject
from services.cli.bench.engine.workload import RandomPrompts
from services.cli.bench.measure import progress_line
from services.cli.bench.measure.environment import machine_record
from shared.engine.layers.kv_cache import TORCH_DTYPES
from shared.engine.loading.device_rates import measure_ceilings
from shared.engine.running.ceilings import Ceilings
from shared.settings.load import changed

LOAD_S, EAGER_S, PROFILE_S = 10.0, 8.0, 8.0
"""on a GPU"""
CPU_LOAD_BYTES_PER_S = 1.5e8
EAGER_TOKENS = 16


class Session:
    """One run of the benchmark; `run` once."""

    def __init__(self, plan: BenchPlan) -> None:
        self._plan = plan
        self._timed: list[tuple[DecodeCell, Timed]] = []
        """what an eager engine repeats"""
        self.figures: list[Figure] = []
        self.checks: list[Check] = []
        """besides those of the figures"""

    def run(self) -> None:
        """Writes each figure's line as soon as it is there."""
        plan = self._plan
        if plan.device.type == "cpu":
            torch.set_num_threads(plan.settings.engine.threads)  # as the engine will have
        progress_line.announce(f"measuring what the device can do: {plan.facts.name}")
        ceilings = measure_ceilings(plan.device, TORCH_DTYPES[plan.dtype])
        floors = Floors(plan.size, ceilings)
        self._write(self._environment(ceilings))
        parts = self._progress(floors)
        for part in plan.attention:
            parts.begin(f"{part.name}: kernels by themselves")
            for figure in attention_figures(part, plan.choice.name, ceilings):
                self._add(figure)
        for step in plan.worker_steps:
            parts.begin(f"{step.name}: the host by itself")
            self._add(worker_step_figure(step, plan.choice.name))
        if not (plan.cells or plan.predictions):
            return
        parts.begin(f"loading {plan.choice.name}")
        subject = self._subject()
        try:
            if isinstance(subject, BatonSubject):
                self._predict(parts, subject)
            self._measure(parts, subject, floors)
            if isinstance(subject, BatonSubject):
                self._profile(parts, subject)
        finally:
            subject.close()
        if self._timed and plan.arguments.engine == "baton":
            parts.begin("first tokens again, by an eager engine")
            self._compare_eager()

    def _subject(self) -> Subject:
        plan = self._plan
        if plan.arguments.engine == "vllm":
            return VllmSubject(plan.choice, *plan.settings.of_engine)
        return BatonSubject(plan.choice, *plan.settings.of_engine)

    def _predict(self, parts: Progress, subject: BatonSubject) -> None:
        prompts = RandomPrompts(subject.vocab_size, seed=3)
        for cell in self._plan.predictions:
            parts.begin(f"{cell.name}: {cell.num_errors} steps predicted")
            self._add(step_prediction_figure(cell, subject, self._plan.choice.name, prompts))

    def _measure(self, parts: Progress, subject: Subject, floors: Floors) -> None:
        plan = self._plan
        bench = Bench(
            subject=subject,
            model=plan.choice.name,
            floors=floors,
            cache_bytes=plan.facts.cache_bytes,
            step_tokens=plan.step_tokens,
            block_size=plan.settings.kv.block_size,
            prompts=RandomPrompts(subject.vocab_size),
        )
        for cell in plan.cells:
            most = subject.num_kv_tokens
            if most is not None and cell.num_tokens > most:
                text = f"{cell.num_tokens} positions, {most} fit"
                parts.begin(f"{cell.name} left out: {text}")
                self._write({"kind": "left out", "cell": cell.name, "text": text})
                continue
            parts.begin(f"{cell.name}: {cell.num_sequences} x {cell.num_prompt} tokens")
            timed = bench.measure(cell)
            self._add(bench.figure(cell, timed, plan.known(cell)))
            if isinstance(cell, DecodeCell) and cell.is_small:
                self._timed.append((cell, timed))

    def _profile(self, parts: Progress, subject: BatonSubject) -> None:
        """P15."""
        plan, folder = self._plan, self._plan.arguments.profile
        prompts = RandomPrompts(subject.vocab_size, seed=2)
        for wanted in plan.profiled:
            parts.begin(f"{wanted.name}: a trace of {wanted.num_steps} steps")
            path = folder / f"{wanted.name}.json.gz"
            write_trace(subject, prompts, wanted, plan.device, path)
            on_gpu = plan.device.type == "cuda"
            progress_line.keep(
                f"wrote {path}" + ("" if on_gpu else "; without a GPU it has no kernels")
            )
            if on_gpu:
                self._show_trace(wanted, path)

    def _show_trace(self, wanted: Profiled, path: Path) -> None:
        kernels = kernels_of(path)
        model = self._plan.choice.name
        for figure in gap_figures(model, wanted, kernels, path):
            self._add(figure)
        parts = step_parts(kernels, wanted.num_steps)
        records = [part.record() for part in parts]
        self._write({"kind": "step", "model": model, "cell": wanted.name, "parts": records})
        sys.stderr.write("\n" + render_parts(parts) + "\n")

    def _compare_eager(self) -> None:
        """The first tokens of the smaller cells once more, without graphs and without a clock.

        All sequences go on until the last one has its tokens, so that each step has the rows it
        had before: with others, sums are rounded elsewhere.
        """
        plan = self._plan
        eager = BatonSubject(plan.choice, *changed(plan.settings, eager=True).of_engine)
        on_gpu = plan.device.type == "cuda"
        how = "kernel by kernel" if on_gpu else "an engine of its own, since a CPU has no graphs"
        try:
            for cell, timed in self._timed:
                workload = timed.workloads[0]
                num_steps = -(-workload.num_prompt_tokens // plan.step_tokens)
                again = eager.run(workload.shortened(EAGER_TOKENS + num_steps + 2))
                num_tokens = min(EAGER_TOKENS, cell.num_steps)
                check = check_equal(timed.runs[0], again, num_tokens, how)
                if plan.settings.engine.eager:
                    check = replace(check, ok=None, text="not applicable: both are eager")
                self.checks.append(replace(check, name=f"{cell.name}: {check.name}"))
                self._write({"kind": "check", "cell": cell.name, **check.record()})
        finally:
            eager.close()

    def _progress(self, floors: Floors) -> Progress:
        plan = self._plan
        on_gpu = plan.device.type == "cuda"
        load_s = plan.size.weight_bytes / CPU_LOAD_BYTES_PER_S + 0.2
        estimates = [part.estimate_s for part in plan.attention]
        estimates += [ESTIMATE_S] * len(plan.worker_steps)
        estimates += [LOAD_S if on_gpu else load_s]
        estimates += [cell.estimate_s for cell in plan.predictions]
        estimates += [estimate_s(cell, floors) for cell in plan.cells]
        estimates += [PROFILE_S if on_gpu else load_s] * len(plan.profiled)
        return Progress([*estimates, EAGER_S if on_gpu else load_s])

    def _environment(self, ceilings: Ceilings) -> dict[str, Any]:
        plan, arguments = self._plan, self._plan.arguments
        return machine_record(arguments.command_line) | {
            "engine": arguments.engine,
            "model": plan.choice.name,
            "random_weights": plan.choice.random_weights,
            "dtype": plan.dtype,
            "tp": arguments.tp,
            "device": plan.facts.name,
            "versions": plan.facts.versions,
            "copy_gb_s": round(ceilings.copy_bytes_per_s / 1e9, 1),
            "matmul_tflops": round(ceilings.matmul_flops_per_s / 1e12, 3),
            "weight_bytes": plan.size.weight_bytes,
            "kv_token_bytes": int(plan.size.kv_read_bytes(1)),
        }

    def _add(self, figure: Figure) -> None:
        self.figures.append(figure)
        self._write(figure.record())

    def _write(self, line: dict[str, Any]) -> None:
        progress_line.clear()
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
