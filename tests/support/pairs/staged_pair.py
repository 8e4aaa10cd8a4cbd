"""A prefill and a decode engine in one process, joined by the memory transport.

Needs only what the engine and the transfer need, so that tests/gpu can use it too.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as Run
from concurrent.futures import wait
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pytest
import torch

from shared.engine.engine import Engine
from shared.engine.handover.output import StepOutput
from shared.engine.handover.staging import HostStaging
from shared.engine.layers.kv_cache import device_pool
from shared.engine.loading.kv_pool import KVPool
from shared.engine.scheduling.sequence import SequenceSpec
from shared.kv.layout import KVLayout
from shared.kv.memory import KVMemory
from shared.protocol import Attempt, Sampling, TokenLogprobs, TokenRun, Work
from shared.settings.groups import Settings
from shared.transfer.memory import MemoryNetwork, MemoryTransport
from shared.transfer.transport import Offer, Pulled, PullRequest
from tests.support.models.built_engine import built_engine

ROOT = bytes(32)
TICKET = "ticket"
Answer = list[tuple[int, TokenLogprobs]]


@dataclass(frozen=True)
class StagedEngine:
    """An engine and the pool its model writes."""

    engine: Engine
    kv_pool: torch.Tensor


@contextmanager
def staged_pools(device: torch.device) -> Iterator[list[torch.Tensor]]:
    """Engines built meanwhile have a pool on `device` besides their host memory, even where
    device is the CPU. Yields their pools; they start as NaN, as stale memory might."""
    pools: list[torch.Tensor] = []

    def create_pool(
        layout: KVLayout, num_blocks: int, _: torch.device, *, shared: bool = False
    ) -> KVPool:
        assert not shared, "a pool that others map is not staged"
        memory = KVMemory.create(layout, num_blocks)
        pools.append(device_pool(layout, num_blocks, device).fill_(torch.nan))
        staging = HostStaging(memory, pools[-1], bounce_bytes=64 * 1024)
        return KVPool(pools[-1], memory, staging)

    with pytest.MonkeyPatch.context() as patch:
        builder = "device_rank" if device.type == "cuda" else "rank"
        patch.setattr(f"shared.engine.loading.{builder}.create_pool", create_pool)
        yield pools


def build_pair(settings: Settings) -> tuple[StagedEngine, StagedEngine]:
    """Prefill's and decode's engine, with staging."""
    with staged_pools(torch.device(settings.compute.device)) as pools:
        engines = built_engine(settings, "prefill"), built_engine(settings, "decode")
    return StagedEngine(engines[0], pools[0]), StagedEngine(engines[1], pools[1])


def make_specs(
    prompts: Iterable[list[int]], sampling: Sampling, block_size: int
) -> list[SequenceSpec]:
    """Specs for one engine alone, named by their number."""
    return [
        SequenceSpec.of(
            Work(
                Attempt(str(number), 0),
                tuple(prompt),
                len(prompt),
                ROOT,
                replace(sampling, seed=number),
            ),
            block_size,
            "full",
            "agg",
        )
        for number, prompt in enumerate(prompts)
    ]


def agg_answers(engine: Engine, specs: Iterable[SequenceSpec]) -> Mapping[Attempt, Answer]:
    """What one engine alone answers, all at once."""
    answers: dict[Attempt, Answer] = {}
    for spec in specs:
        engine.add(spec)
    while engine.has_work:
        for run in engine.step().tokens:
            _note(answers, run)
    return answers


class PdPair:
    """Runs specs through both engines; both step whenever they have something to do, pulls run
    between steps."""

    def __init__(self, prefill: StagedEngine, decode: StagedEngine) -> None:
        network = MemoryNetwork()
        self.p, self.d = prefill, decode
        self.answers: dict[Attempt, Answer] = {}
        self.num_pulled_blocks = 0
        self.num_different_blocks = 0
        """pulled blocks whose bits differ between the two pools once adopted"""
        self._source = MemoryTransport(prefill.engine.memory, "p.1", network)
        self._source.on_release = self._release
        self._target = MemoryTransport(decode.engine.memory, "d.1", network)
        self._offers: dict[Attempt, Offer] = {}
        self._published: dict[Attempt, list[int]] = {}
        self._sources: dict[Attempt, torch.Tensor] = {}
        """prefill's blocks of an attempt, as they were when it was released"""
        self._pulls: dict[asyncio.Task[Pulled], tuple[Attempt, tuple[int, ...], int]] = {}

    async def run(self, specs: Iterable[SequenceSpec]) -> Mapping[Attempt, Answer]:
        """The client's view of every attempt."""
        await self._source.start()
        await self._target.start()
        waiting = {spec.work.attempt: spec for spec in specs}
        for spec in waiting.values():
            self._offers[spec.work.attempt] = self._source.offer(spec.work.attempt, TICKET)
            self.p.engine.add(replace(spec, mode="prefill", reason=""))
        async with asyncio.timeout(60):
            while self.p.engine.sequences or self.d.engine.sequences or self._pulls:
                if self.p.engine.has_work:
                    output = self.p.engine.step()
                    for attempt, _ in output.started:
                        self.d.engine.reserve(replace(waiting[attempt], mode="decode", reason=""))
                    self._offer(output)
                if self.d.engine.has_work:
                    self._decode(self.d.engine.step())
                await self._adopt()
        await self._target.close()
        await self._source.close()
        return self.answers

    def _offer(self, output: StepOutput) -> None:
        for attempt, piece in output.staged:
            self._offers[attempt].publish(piece)
            self._published.setdefault(attempt, []).extend(piece.block_ids)
        for attempt, run in output.sealed:
            self._offers[attempt].seal(run)
        for run in output.tokens:
            _note(self.answers, run)

    def _decode(self, output: StepOutput) -> None:
        for attempt, block_ids, num_present in output.reserved:
            request = PullRequest(
                attempt, self._source.address, "p.1", TICKET, block_ids, num_present
            )
            task = asyncio.create_task(self._target.pull(request))
            self._pulls[task] = attempt, block_ids, num_present
        for run in output.tokens:
            _note(self.answers, run)

    async def _adopt(self) -> None:
        """Let pulls go on for a moment; adopt what has arrived."""
        await asyncio.sleep(0.0005)
        for task in [task for task in self._pulls if task.done()]:
            attempt, block_ids, num_present = self._pulls.pop(task)
            run = task.result().run
            assert run is not None
            assert self.d.engine.adopt(attempt, run)
            _, copies = self.d.engine.hand_overs._arriving.get(attempt, (None, []))
            wait(copies)
            pulled = _bits(self.d.kv_pool, block_ids[num_present:])
            different = (pulled != self._sources.pop(attempt)[num_present:]).any(dim=1)
            self.num_pulled_blocks += len(pulled)
            self.num_different_blocks += int(different.sum())

    def _release(self, attempt: Attempt) -> None:
        self._sources[attempt] = _bits(self.p.kv_pool, self._published.pop(attempt))
        self.p.engine.release(attempt)


def _bits(kv_pool: torch.Tensor, block_ids: Run[int]) -> torch.Tensor:
    """i32[blocks, words]: NaN equals itself."""
    return kv_pool[list(block_ids)].flatten(1).view(torch.int32).cpu()


def _note(answers: dict[Attempt, Answer], run: TokenRun) -> None:
    """Apply by index; what is said again must be the same."""
    answer = answers.setdefault(run.attempt, [])
    said = list(zip(run.token_ids, run.logprobs, strict=True))
    overlap = len(answer) - run.index
    assert overlap >= 0 and answer[run.index :] == said[:overlap]
    answer.extend(said[overlap:])
