"""A prefill and a decode engine in processes of their own, and what the io processes of both
workers do with them, without gateway and Redis."""

import asyncio
from dataclasses import replace

from shared.clock import SystemClock
from shared.engine.scheduling.sequence import SequenceSpec
from shared.protocol import Attempt
from shared.settings.groups import Settings
from shared.transfer.build import build_transport
from shared.transfer.transport import KVTransport, Offer, Pulled, PullRequest
from shared.worker.channel import Add, Adopt, Event, Release, Reserve, Scheduled, StepReport
from shared.worker.engine_client import EngineClient
from shared.worker.fork_client import ForkServer

TICKET = "ticket"


class EnginePair:
    """Serves what it is given, once."""

    def __init__(self, prefill: Settings, decode: Settings, specs: list[SequenceSpec]) -> None:
        self.specs = {spec.work.attempt: spec for spec in specs}
        self.answers: dict[str, dict[int, int]] = {}
        self.pulled: list[Pulled] = []
        self.done = asyncio.Event()
        self._prefill, self._decode = prefill, decode
        self._servers = ForkServer(prefill, "prefill"), ForkServer(decode, "decode")
        self._p = EngineClient(prefill, self._servers[0])
        self._d = EngineClient(decode, self._servers[1])
        self._p.on_event, self._d.on_event = self._on_prefill, self._on_decode
        self._offers: dict[Attempt, Offer] = {}
        self._pulls: set[asyncio.Task[None]] = set()
        self._num_finished = 0

    async def run(self) -> None:
        try:
            await asyncio.gather(self._p.start(), self._d.start())
            self._source = self._transport(self._prefill, self._p, "p.1")
            self._source.on_release = self._release
            self._target = self._transport(self._decode, self._d, "d.1")
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
            for server in self._servers:
                server.close()

    def _transport(self, settings: Settings, engine: EngineClient, incarnation: str) -> KVTransport:
        assert engine.memory is not None and engine.mover is not None
        return build_transport(
            settings, incarnation, engine.memory, engine.pools, engine.mover, SystemClock()
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
