"""The host's part of a step of a worker's loop: all of it but the model and the sampling.

The worker's own loop and channel drive an engine whose model and sampler answer at once. As on a
GPU, a step is scheduled while the one before it is in flight.
"""

import contextlib
import gc
import socket
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from services.cli.bench.engine.figures.figure import Figure
from shared.engine.engine import Engine
from shared.engine.handover.kv_pool import host_pool
from shared.engine.running.model_runner import OnStored
from shared.engine.sampling.prompt_scores import PromptScorer
from shared.engine.sampling.sample_row import SampleRow
from shared.engine.sampling.sampled_tokens import HostTokens, SampledToken
from shared.engine.scheduling.batch import HostBatch
from shared.engine.scheduling.block_pool import BlockPool
from shared.engine.scheduling.scheduler import Scheduler
from shared.engine.scheduling.sequence import SequenceSpec
from shared.kv.layout import KVLayout, num_blocks_for
from shared.kv.memory import KVMemory
from shared.protocol import Attempt, Sampling, Work
from shared.worker.channel import EngineChannel
from shared.worker.engine_process import EngineLoop

HASH_ROOT = bytes(32)
LAYOUT = KVLayout("none", "float16", 1, 1, 1, 1, 16)
NUM_PROMPT = 64
WARM_STEPS = 40
STEP_TOKENS = 8192
QUICK_STEPS = 100
ESTIMATE_S = 2.0


@dataclass(frozen=True)
class WorkerStepCell:
    """A number of steps in which every sequence decodes one token."""

    name: str = "worker-step-256"
    num_sequences: int = 256
    num_steps: int = 300

    @property
    def longest(self) -> int:
        return NUM_PROMPT + WARM_STEPS + self.num_steps + 8

    def quick(self) -> "WorkerStepCell":
        return replace(self, num_steps=min(self.num_steps, QUICK_STEPS))


def worker_step_figure(cell: WorkerStepCell, model: str) -> Figure:
    """The median; the model has no part in it."""
    steps_us = time_steps(cell)
    return Figure(
        goal="P15",
        model=model,
        cell=cell.name,
        value=statistics.median(steps_us),
        unit="us",
        text=f"host's part of a step of a worker's loop in which {cell.num_sequences} sequences "
        f"decode, median of {cell.num_steps}: no model, no sampling",
        more={"p90_us": round(statistics.quantiles(steps_us, n=10)[-1], 1)},
    )


def time_steps(cell: WorkerStepCell) -> list[float]:
    """Microseconds of each step: CPU time, which other work on the machine does not add to."""
    engine = _engine(cell)
    ours, io_end = socket.socketpair()
    with ours, io_end:
        io_end.setblocking(False)
        loop = EngineLoop(engine, EngineChannel(ours))
        for number in range(cell.num_sequences):
            engine.add(_spec(number, cell.longest))
        while len(engine.step().tokens) < cell.num_sequences:  # until all of them decode
            pass
        gc.collect()
        gc.freeze()  # as a worker does
        try:
            steps_us = [_timed_turn(loop, io_end) for _ in range(WARM_STEPS + cell.num_steps)]
        finally:
            gc.unfreeze()
    engine.grammars.close()
    return steps_us[WARM_STEPS:]


def _timed_turn(loop: EngineLoop, io_end: socket.socket) -> float:
    start_ns = time.thread_time_ns()
    loop.turn()
    turn_us = (time.thread_time_ns() - start_ns) / 1e3
    with contextlib.suppress(BlockingIOError):
        while io_end.recv(2**20):
            pass
    return turn_us


def _engine(cell: WorkerStepCell) -> Engine:
    num_blocks = cell.num_sequences * (num_blocks_for(cell.longest, LAYOUT.block_size) + 1)
    memory = KVMemory.create(LAYOUT, num_blocks)
    scheduler = Scheduler(
        BlockPool(num_blocks, LAYOUT.block_size, memory.generations),
        max_num_batched_tokens=STEP_TOKENS,
        max_num_seqs=cell.num_sequences,
        max_model_len=cell.longest,
    )
    engine = Engine(_NoModel(), scheduler, _NoSampler(), host_pool(memory), "decode")
    engine.step_clock.warm()  # so that learning from steps is part of each
    return engine


def _spec(number: int, longest: int) -> SequenceSpec:
    token_ids = tuple(range(number, number + NUM_PROMPT))
    sampling = Sampling(max_tokens=longest, temperature=0.0, ignore_eos=True)
    work = Work(Attempt(f"bench-{number}", 0), token_ids, NUM_PROMPT, HASH_ROOT, sampling)
    return SequenceSpec.of(work, LAYOUT.block_size, "full", "agg")


class _NoModel:
    runs_ahead = True
    whole_rows = 0
    device = torch.device("cpu")
    scorer = PromptScorer(lambda hidden: hidden, 1)

    def run(
        self,
        batch: HostBatch,
        previous: torch.Tensor | None = None,
        on_stored: OnStored | None = None,
    ) -> torch.Tensor:
        return torch.empty(0)

    def meet(self) -> None:
        """There is no other rank."""

    def rehearsal(self) -> HostBatch | None:
        return None

    def exercise(self) -> torch.Tensor | None:
        return None


class _NoSampler:
    def sample(self, logits: torch.Tensor, rows: Sequence[SampleRow]) -> HostTokens:
        return HostTokens(logits, [SampledToken(7, None)] * len(rows))
