"""The gateway's core over real TCP links: scripted workers, one killed in mid-stream."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from services.gateway.owner.core import GatewayCore, GatewayStores
from services.gateway.owner.door import Door
from services.gateway.owner.generation import GenerateRequest
from services.gateway.owner.identity import GatewayIdentity
from services.gateway.owner.links.served_pool import ServedPool
from services.gateway.owner.links.worker_links import WorkerLinks
from services.gateway.owner.records.receipt import Receipt
from shared.clock import SystemClock
from shared.kv.block_hash import BlockHashing
from shared.link.server import LinkServer, Peer
from shared.protocol import (
    Assign,
    Cancel,
    FinishReason,
    Hello,
    Load,
    Message,
    Ping,
    Pong,
    Receive,
    Sampling,
    Start,
    TokenRun,
    Tokens,
    Work,
)
from shared.queue.memory_backlog import MemoryBacklog
from shared.settings.groups import LimitSettings
from shared.state.memory_records import MemoryGatewayLiveness, MemoryRequestRecords
from shared.state.memory_registry import MemoryWorkerRegistry
from shared.state.prefix_index import PrefixIndex
from shared.state.registry import WorkerEntry
from shared.telemetry.attainment import DEFAULT_OBJECTIVES, Attainment
from shared.telemetry.histogram import PlainHistogram
from shared.transfer_address import TransferAddress
from tests.support.measured import Measured

pytestmark = [pytest.mark.anyio, pytest.mark.clock]

POOL = "demo@0:fp"
IDLE = Load(4096, 0, 0, 0, 100, 100, 0, 0)
STEP_S = 0.002


def token_at(position: int) -> int:
    """The model: every token is a function of its position, whoever computes it."""
    return 1000 + position * 7 % 97


class ScriptedWorker:
    """A worker with a real link and no engine: it computes `token_at`."""

    def __init__(self, role: Literal["prefill", "decode"], name: str) -> None:
        self.role = role
        self.name = name
        self.incarnation = f"{name}.{'1' * 32}"
        self.port = 0
        self.num_steps = 0
        self.assigned_at = 0.0
        self.cancelled: list[str] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.server = LinkServer(self._hello, self._receive, lambda _: None)

    def _hello(self) -> Hello:
        address = TransferAddress("unused" if self.role == "prefill" else "")
        return Hello(self.role, self.incarnation, POOL, load=IDLE, transfer_address=address)

    async def start(self, registry: MemoryWorkerRegistry) -> None:
        self.port = await self.server.start("127.0.0.1", 0)
        await registry.register(
            WorkerEntry(
                self.name,
                self.incarnation,
                self.role,
                "127.0.0.1",
                self.port,
                POOL,
                1,
                "1",
                "m",
                99,
                16,
            )
        )

    async def kill(self) -> None:
        """What a dead process looks like: every connection ends, nobody listens."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.server.close()

    def _receive(self, peer: Peer, message: Message) -> None:
        if isinstance(message, Ping):
            peer.send(Pong(message.seq, IDLE))
        elif isinstance(message, Assign):
            self.assigned_at = time.perf_counter()
            peer.send(Start(message.work.attempt, self.incarnation, 0, IDLE))
            self._run(peer, message.work, 1)
        elif isinstance(message, Receive):
            self._run(peer, message.work, message.work.sampling.max_tokens)
        elif isinstance(message, Cancel):
            self.cancelled.append(message.attempt.rid)

    def _run(self, peer: Peer, work: Work, num_tokens: int) -> None:
        task = asyncio.get_running_loop().create_task(self._decode(peer, work, num_tokens))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _decode(self, peer: Peer, work: Work, num_tokens: int) -> None:
        start = len(work.token_ids) - work.num_prompt_tokens
        for index in range(start, max(start + 1, num_tokens if num_tokens > 1 else 0)):
            await asyncio.sleep(STEP_S)
            self.num_steps += 1
            ends = index + 1 == work.sampling.max_tokens
            reason: FinishReason | None = "length" if ends else None
            token = token_at(work.num_prompt_tokens + index)
            run = TokenRun(*work.attempt, index, (token,), (), reason)
            peer.send(Tokens(self.incarnation, (run,), IDLE))


class Unobserved:
    """An Observer that keeps nothing."""

    attainment = Attainment(DEFAULT_OBJECTIVES, PlainHistogram("gaps", "", (0.05,)))

    def first_token(self, ttft_s: float) -> None:
        pass

    def token_gaps(self, gap_s: float, num_tokens: int) -> None:
        pass

    def ended(self, request: GenerateRequest, receipt: Receipt) -> None:
        pass


@dataclass
class Cell:
    core: GatewayCore
    links: WorkerLinks
    workers: dict[str, ScriptedWorker]


@contextlib.asynccontextmanager
async def cell(**names: Literal["prefill", "decode"]) -> AsyncIterator[Cell]:
    clock = SystemClock()
    registry = MemoryWorkerRegistry(clock, ttl_s=60.0)
    workers = {name: ScriptedWorker(role, name) for name, role in names.items()}
    for worker in workers.values():
        await worker.start(registry)
    g_inc = "g0." + "0" * 32
    served = ServedPool("demo", POOL, 16)
    links = WorkerLinks(registry, served, g_inc, clock)
    records = MemoryRequestRecords(MemoryGatewayLiveness(), clock)
    core = GatewayCore(
        LimitSettings(),
        GatewayIdentity(g_inc, served, "1", "", "m", 99, BlockHashing(b"", 16)),
        GatewayStores(records, MemoryBacklog(9, (g_inc,)), PrefixIndex()),
        links,
        clock,
        Unobserved(),
    )
    core.start()
    try:
        await until(lambda: len(links.workers()) == len(workers))
        yield Cell(core, links, workers)
    finally:
        await core.close()
        for worker in workers.values():
            await worker.kill()


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(5.0):
        while not condition():  # noqa: ASYNC110 -- waits for another connection's end
            await asyncio.sleep(0.005)


def request(rid: str, num_prompt: int, max_tokens: int) -> GenerateRequest:
    return GenerateRequest(
        rid=rid,
        tenant="t",
        endpoint="text",
        prompt_ids=tuple(range(num_prompt)),
        sampling=Sampling(max_tokens=max_tokens),
        timeout_s=20.0,
        traceparent=None,
        received_ns=time.time_ns(),
    )


async def answer(door: Door, rid: str, num_prompt: int, max_tokens: int) -> list[int]:
    generation = door.submit(request(rid, num_prompt, max_tokens))
    return [token async for delta in generation for token in delta.token_ids]


def expected(num_prompt: int, max_tokens: int) -> list[int]:
    return [token_at(num_prompt + index) for index in range(max_tokens)]


async def test_kill_one_decode_and_one_prefill_worker_under_streams() -> None:
    async with cell(p0="prefill", p1="prefill", d0="decode", d1="decode") as bed:
        streams = [
            asyncio.ensure_future(answer(bed.core.door, f"r{at}", 20 + at, 40)) for at in range(24)
        ]
        d0, p0 = bed.workers["d0"], bed.workers["p0"]
        await until(lambda: d0.num_steps >= 60)
        await d0.kill()
        await p0.kill()
        answers = await asyncio.gather(*streams)
        assert answers == [expected(20 + at, 40) for at in range(24)]
        attempts = [bed.core.door.receipt(f"r{at}") for at in range(24)]
        retried = sum(len(item["attempts"]) > 1 for item in attempts if item)
        assert retried >= 6, "the kill hit nobody"
        ids = {item["id"]: item["state"] for item in bed.core.door.status()["workers"]}
        assert ids == {"p0": "suspect", "p1": "ready", "d0": "suspect", "d1": "ready"}
        assert bed.core.door.status()["requests"] == {"live": 0}


async def test_a_client_that_leaves_cancels_at_the_worker() -> None:
    async with cell(p0="prefill", d0="decode") as bed:
        generation = bed.core.door.submit(request("r1", 20, 2000))
        await anext(generation)
        await until(lambda: bed.workers["d0"].num_steps > 2)
        generation.cancel()
        await until(lambda: bed.workers["d0"].cancelled == ["r1"])


async def test_assign_reaches_the_worker_in_well_under_a_millisecond(measured: Measured) -> None:
    """From `submit` to the worker's frame, both ends on this loop; bounds are for a busy host."""
    async with cell(p0="prefill", d0="decode") as bed:
        p0 = bed.workers["p0"]
        submits, arrivals = [], []
        for at in range(200):
            start = time.perf_counter()
            generation = bed.core.door.submit(request(f"r{at}", 2048, 1))
            submits.append(time.perf_counter() - start)
            async for _ in generation:
                pass
            arrivals.append(p0.assigned_at - start)
        submit_us, arrival_us = (sorted(x)[100] * 1e6 for x in (submits, arrivals))
        logging.getLogger(__name__).info("submit %.0f us, ASSIGN %.0f us", submit_us, arrival_us)
        counters = bed.core.counters
        assert (counters.direct_assigns, counters.backlog_puts) == (200, 0)
        measured.at_most("submit to ASSIGN, p50", arrival_us, 5000, "us")
