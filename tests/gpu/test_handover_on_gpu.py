"""Two engine processes on a GPU: blocks go over tcp through host memory, or straight from pool to
pool where they are mapped."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from shared.clock import SystemClock
from shared.engine.scheduling.sequence import SequenceSpec
from shared.protocol import Attempt, Sampling
from shared.settings.groups import Settings
from shared.transfer.build import build_transport
from shared.transfer.transport import KVTransport, Offer, Pulled, PullRequest
from shared.worker.channel import Add, Adopt, Event, Release, Reserve, Scheduled, StepReport
from shared.worker.engine_client import EngineClient
from tests.support.models.built_engine import built_engine
from tests.support.models.tiny_model import TINY, write_checkpoint
from tests.support.oracles.agg_answers import agg_answers, make_specs
from tests.support.settings import settings_with

TICKET = "ticket"
PROMPTS = [[(7 * step + length) % 131 for step in range(length)] for length in (1, 16, 90, 200)]


class IoProcess:
    """What the io processes of both workers do, without gateway and Redis."""

    def __init__(self, settings: Settings, specs: list[SequenceSpec]) -> None:
        self._settings = settings
        self.specs = {spec.work.attempt: spec for spec in specs}
        self.answers: dict[str, dict[int, int]] = {}
        self.pulled: list[Pulled] = []
        self.done = asyncio.Event()
        self._p, self._d = EngineClient(settings, "prefill"), EngineClient(settings, "decode")
        self._p.on_event, self._d.on_event = self._on_prefill, self._on_decode
        self._offers: dict[Attempt, Offer] = {}
        self._pulls: set[asyncio.Task[None]] = set()
        self._num_finished = 0

    async def run(self) -> None:
        try:
            await asyncio.gather(self._p.start(), self._d.start())
            self._source = self._transport(self._p, "p.1")
            self._source.on_release = self._release
            self._target = self._transport(self._d, "d.1")
            await self._source.start()
            for attempt, spec in self.specs.items():
                self._offers[attempt] = self._source.offer(attempt, TICKET)
                self._p.send(Add(replace(spec, mode="prefill", reason="")))
            await self.done.wait()
            await asyncio.gather(*self._pulls)
            await self._target.close()
            await self._source.close()
        finally:
            await asyncio.gather(self._p.stop(), self._d.stop())

    def _transport(self, engine: EngineClient, incarnation: str) -> KVTransport:
        assert engine.memory is not None and engine.mover is not None
        return build_transport(
            self._settings, incarnation, engine.memory, engine.pool, engine.mover, SystemClock()
        )

    def _on_prefill(self, event: Event) -> None:
        if isinstance(event, Scheduled):
            for announced in event.announced:
                self._offers[announced.attempt].publish(announced.piece, announced.step)
            for attempt, _ in event.started:
                self._d.send(Reserve(replace(self.specs[attempt], mode="decode", reason="")))
        elif isinstance(event, StepReport):
            for attempt, run in event.sealed:
                self._offers[attempt].seal(run)

    def _on_decode(self, event: Event) -> None:
        if isinstance(event, Scheduled):
            for reserved in event.reserved:
                request = PullRequest(
                    reserved.attempt,
                    self._source.address,
                    "p.1",
                    TICKET,
                    reserved.block_ids,
                    reserved.num_present_blocks,
                )
                self._pulls.add(asyncio.create_task(self._pull(request)))
        elif isinstance(event, StepReport):
            for run in event.tokens:
                answer = self.answers.setdefault(run.rid, {})
                answer.update(enumerate(run.token_ids, run.index))
            self._num_finished += len(event.finished)
            if self._num_finished == len(self.specs):
                self.done.set()

    async def _pull(self, request: PullRequest) -> None:
        pulled = await self._target.pull(request)
        assert pulled.run is not None
        self.pulled.append(pulled)
        self._d.send(Adopt(request.attempt, pulled.run))

    def _release(self, attempt: Attempt) -> None:
        self._p.send(Release(attempt))


@pytest.mark.parametrize("transport", ["auto", "tcp", "mapped"])
def test_answers_equal_those_of_one_engine(transport: str, tmp_path: Path) -> None:
    torch.set_float32_matmul_precision("highest")
    write_checkpoint(tmp_path, TINY)
    settings = settings_with(
        model=str(tmp_path),
        device="cuda",
        dtype="float32",
        kv_blocks=40,
        block_size=16,
        max_num_batched_tokens=80,
        transport=transport,
        transfer_dir=str(tmp_path / "kv"),
    )
    sampling = Sampling(max_tokens=9, temperature=0.0, ignore_eos=True, logprobs=0)
    specs = make_specs(PROMPTS, sampling, 16)
    expected = agg_answers(built_engine(settings, "decode"), specs)

    async def serve() -> IoProcess:
        io = IoProcess(settings, specs)
        async with asyncio.timeout(120):
            await io.run()
        return io

    io = asyncio.run(serve())
    assert sum(pulled.num_blocks for pulled in io.pulled) == sum(
        -(-len(prompt) // 16) for prompt in PROMPTS
    )
    for attempt, answer in expected.items():
        assert io.answers[attempt.rid] == dict(enumerate(token for token, _ in answer))
