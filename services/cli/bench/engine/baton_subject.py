"""Baton's engine under measurement: the one a worker steps, without the worker around it."""

import contextlib
import gc
import time
from collections.abc import Callable, Iterator

import torch

from services.cli.bench.engine.model_choice import ModelChoice
from services.cli.bench.engine.subject import Run
from services.cli.bench.engine.workload import Request, Workload
from shared.engine.build import build_engine
from shared.engine.engine import Engine
from shared.engine.handover.output import StepOutput
from shared.engine.layers.random_weights import RandomWeights
from shared.engine.layers.weights import WeightReader
from shared.engine.scheduling.sequence import SequenceSpec
from shared.errors import BatonError
from shared.protocol import Attempt, Sampling, Work
from shared.release import release
from shared.settings.groups import ComputeSettings, EngineSettings, KVSettings

HASH_ROOT = b"benchmark"

Watcher = Callable[[Engine, StepOutput], None]


class BatonSubject:
    """One engine in this process. Requests are hashed before the clock starts, as a gateway
    hashes them before a worker sees them."""

    def __init__(
        self,
        choice: ModelChoice,
        compute: ComputeSettings,
        kv: KVSettings,
        engine: EngineSettings,
    ) -> None:
        weights = RandomWeights if choice.random_weights else WeightReader
        checkpoint = choice.checkpoint
        self._engine: Engine | None = build_engine(
            compute, kv, engine, "decode", checkpoint, weights
        )
        self._engine.try_out()  # as a worker does before its first request
        self._engine.rehearse()
        self._vocab_size = choice.config.vocab_size
        self.block_size = kv.block_size
        self._num_requests = 0
        self._watchers: list[Watcher] = []
        gc.collect()
        gc.freeze()  # as a worker does: collecting garbage must not look through the model

    @property
    def name(self) -> str:
        return f"baton {release()}"

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    @property
    def num_kv_tokens(self) -> int:
        return self.engine.load().total * self.block_size

    @property
    def engine(self) -> Engine:
        assert self._engine is not None, "closed"
        return self._engine

    def run(self, workload: Workload) -> Run:
        engine, counters = self.engine, self.engine.counters
        specs = self._specs(workload)
        hits, preemptions = counters.prefix_hit_tokens, counters.preemptions
        tokens: dict[str, list[int]] = {spec.work.attempt.rid: [] for spec in specs}
        steps_s: list[float] = []
        start_s = last_s = end_s = time.perf_counter()
        for spec in specs:
            engine.add(spec)
        while engine.has_work:
            output = engine.step()
            if output.failed:
                raise BatonError(f"a sequence failed: {output.failed[0][1]}")
            for run in output.tokens:
                tokens[run.rid].extend(run.token_ids)
            for watcher in self._watchers:
                watcher(engine, output)
            now_s = time.perf_counter()
            if len(output.tokens) == len(specs) and not output.chunks:
                steps_s.append(now_s - last_s)
            last_s = now_s
            end_s = now_s if output.tokens else end_s  # an engine that runs ahead goes on a little
        return Run(
            elapsed_s=end_s - start_s,
            token_ids=tuple(tuple(tokens[spec.work.attempt.rid]) for spec in specs),
            steps_s=tuple(steps_s),
            num_prefix_hits=counters.prefix_hit_tokens - hits,
            num_preemptions=counters.preemptions - preemptions,
        )

    def add(self, workload: Workload) -> None:
        """To an engine that somebody else steps."""
        for spec in self._specs(workload):
            self.engine.add(spec)

    @contextlib.contextmanager
    def watched(self, watcher: Watcher) -> Iterator[None]:
        """`watcher` is called after each step of a run, within its time."""
        self._watchers.append(watcher)
        try:
            yield
        finally:
            self._watchers.remove(watcher)

    def close(self) -> None:
        self._engine = None
        gc.unfreeze()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _specs(self, workload: Workload) -> list[SequenceSpec]:
        return [self._spec(request, workload.temperature) for request in workload.requests]

    def _spec(self, request: Request, temperature: float) -> SequenceSpec:
        self._num_requests += 1
        token_ids = request.token_ids
        sampling = Sampling(
            max_tokens=request.num_output,
            temperature=temperature,
            ignore_eos=True,
            seed=self._num_requests,
        )
        work = Work(
            attempt=Attempt(f"bench-{self._num_requests}", 0),
            token_ids=token_ids,
            num_prompt_tokens=len(token_ids),
            hash_root=HASH_ROOT,
            sampling=sampling,
        )
        return SequenceSpec.of(work, self.block_size, "full", "agg")
