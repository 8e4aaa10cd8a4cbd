"""The core of a gateway on fake links: workers say what a test tells them, stores in memory."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal, TypeVar, cast

from services.gateway.owner.core import GatewayCore, GatewayStores
from services.gateway.owner.generation import GenerateRequest
from services.gateway.owner.identity import GatewayIdentity
from services.gateway.owner.links.served_pool import ServedPool
from services.gateway.owner.links.worker_links import WorkerLinks
from services.gateway.owner.live_request import LiveRequest
from services.gateway.owner.records.metrics_observer import MetricsObserver
from shared.errors import PeerLostError, ProtocolError, StateUnavailableError
from shared.message_parts.span import Span
from shared.protocol import (
    DEFAULT_PRIORITY,
    Assign,
    FinishReason,
    Hello,
    Load,
    Message,
    Receive,
    Sampling,
    Start,
    TokenRun,
    Tokens,
)
from shared.queue.memory_backlog import MemoryBacklog
from shared.settings.groups import KVPressure, Topology
from shared.state.memory_records import MemoryGatewayLiveness, MemoryRequestRecords
from shared.state.memory_registry import MemoryWorkerRegistry
from shared.state.prefix_index import PrefixIndex
from shared.state.records import Admission, AdmittedRequest, Finish, KeyTaken, Outcome
from shared.state.registry import WorkerEntry
from shared.telemetry.metrics import GatewayMetrics
from shared.telemetry.tracing import TraceContext
from shared.transfer_address import TransferAddress
from tests.support.fakes.manual_clock import ManualClock
from tests.support.settings import settings_with

POOL = "demo@0:fp"
G_INC = "g0." + "0" * 32
IDLE = Load(1024, 0, 0, 0, 100, 100, 0, 0)
FULL = Load(0, 900, 4, 4, 100, 100, 0, 0)
TURNS = 50
VOCAB_SIZE = 1000

T = TypeVar("T")


class FakeLink:
    """Both ends of a link in one object."""

    def __init__(self, hello: Hello, on_message: Any, on_closed: Any) -> None:
        self.peer = hello
        self.version = 6
        self.closed = False
        self.sent: list[Message] = []
        self._on_message = on_message
        self._on_closed = on_closed

    def send(self, message: Message) -> None:
        if not self.closed:
            self.sent.append(message)

    async def close(self) -> None:
        self.hang_up()

    def hang_up(self) -> None:
        if not self.closed:
            self.closed = True
            self._on_closed(self)

    def say(self, message: Message) -> None:
        self._on_message(self, message)


class FakeWorker:
    """A worker process as its gateway sees it."""

    def __init__(self, role: Literal["prefill", "decode"], name: str, nonce: str = "1") -> None:
        self.incarnation = f"{name}.{nonce:>032}"
        self.name = name
        self.role = role
        self.load = IDLE
        self.trial_token_s = 0.0
        self.room_limit_tokens = 0
        self.hands_over = role == "prefill"
        """it can be pulled from"""
        self.reachable = True
        self.objection: ProtocolError | None = None
        """why the challenge ends; None when it passes"""
        self.num_dials = 0
        self.link: FakeLink | None = None
        self.greetings: list[Hello] = []

    def hello(self) -> Hello:
        address = TransferAddress(f"{self.name}:7" if self.hands_over else "")
        return Hello(
            *(self.role, self.incarnation, POOL, (), self.load, address, 7, "here"),
            prefill_token_s=self.trial_token_s,
            room_limit_tokens=self.room_limit_tokens,
        )

    def entry(self, port: int) -> WorkerEntry:
        return WorkerEntry(
            self.name, self.incarnation, self.role, "fake", port, POOL, 7, "1", "demo", 2048, 16
        )

    def say(self, message: Message) -> None:
        assert self.link is not None
        self.link.say(message)

    def last(self, kind: type[T]) -> T:
        """The last message of a kind that the gateway sent here."""
        found = self.all(kind)
        assert found, f"{self.name} got no {kind.__name__}"
        return found[-1]

    def all(self, kind: type[T]) -> list[T]:
        assert self.link is not None
        return [message for message in self.link.sent if isinstance(message, kind)]

    def start(self, num_cached_tokens: int = 0) -> None:
        """START for the last ASSIGN."""
        self.start_of(self.last(Assign), num_cached_tokens)

    def start_of(self, assign: Assign, num_cached_tokens: int = 0) -> None:
        self.say(Start(assign.work.attempt, self.incarnation, num_cached_tokens, self.load))

    def tokens(self, index: int, *token_ids: int, reason: FinishReason | None = None) -> None:
        """A frame for the last attempt this worker got."""
        kind: type[Assign] | type[Receive] = Assign if self.all(Assign) else Receive
        self.run(self.last(kind), index, *token_ids, reason=reason)

    def run(
        self,
        message: Assign | Receive,
        index: int,
        *token_ids: int,
        reason: FinishReason | None = None,
    ) -> None:
        """A frame for this message's attempt."""
        run = TokenRun(*message.work.attempt, index, token_ids, (), reason)
        self.say(Tokens(self.incarnation, (run,), self.load))

    def die(self) -> None:
        self.reachable = False
        assert self.link is not None
        self.link.hang_up()


class FlakyRecords(MemoryRequestRecords):
    """Records whose server can be away."""

    def __init__(self, clock: ManualClock) -> None:
        self.liveness = MemoryGatewayLiveness()
        super().__init__(self.liveness, clock)
        self.away = False
        self.refuses = False
        self.calls: list[tuple[str, str]] = []
        """that were answered: what of whom"""

    async def admit(self, request: AdmittedRequest, max_live: int = 0) -> Admission | KeyTaken:
        if self.away:
            raise StateUnavailableError("away")
        self.calls.append(("admit", request.rid))
        if self.refuses:
            return Admission.OVER_QUOTA
        return await super().admit(request, max_live)

    async def finish(self, request: AdmittedRequest, outcome: Outcome) -> Finish:
        if self.away:
            raise StateUnavailableError("away")
        self.calls.append(("finish", request.rid))
        return await super().finish(request, outcome)


class FlakyBacklog(MemoryBacklog):
    away = False

    async def cancel(self, rid: str) -> bool:
        if self.away:
            raise StateUnavailableError("away")
        return await super().cancel(rid)


class FlakyRegistry(MemoryWorkerRegistry):
    away = False

    async def list(self, pool: str) -> tuple[WorkerEntry, ...]:
        if self.away:
            raise StateUnavailableError("away")
        return await super().list(pool)


class SpanList:
    """A span sink that keeps everything."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def emit(
        self, span: Span, parent: TraceContext | None, own: TraceContext | None = None
    ) -> None:
        self.spans.append(span)

    def close(self) -> None:
        pass


class Bench:
    """One gateway core and its surroundings."""

    def __init__(self, topology: Topology = "auto", max_backlog: int = 4, **settings: Any) -> None:
        self.clock = ManualClock(100.0)
        self.settings = settings_with(max_backlog=max_backlog, **settings)
        self.records = FlakyRecords(self.clock)
        self.registry = FlakyRegistry(self.clock, ttl_s=1e9)
        self.beats = {G_INC}
        """gateways that live"""
        self.backlog = FlakyBacklog(max_backlog, self.beats)
        self.records.settle = self.backlog.settle
        self.index = PrefixIndex()
        self.spans = SpanList()
        served = self.served = ServedPool("demo", POOL, 16)
        self.links = WorkerLinks(self.registry, served, G_INC, self.clock, self._dial)
        hashing = self.settings.kv.hashing(self.settings.network.cell_secret)
        identity = GatewayIdentity(
            *(G_INC, served, "1", "http://x", "demo", 2048, hashing, topology),
            on_kv_pressure=cast(KVPressure, self.settings.kv.on_pressure),
            vocab_size=VOCAB_SIZE,
        )
        stores = GatewayStores(self.records, self.backlog, self.index)
        observation = MetricsObserver(GatewayMetrics(self.links.samples), self.spans, "demo")
        self.attainment = observation.attainment
        self.core = GatewayCore(
            self.settings.limits, identity, stores, self.links, self.clock, observation
        )
        self.door, self.requests = self.core.door, self.core.requests
        self.request_clock = self.core.request_clock
        self.workers: list[FakeWorker] = []

    def live(self, rid: str) -> LiveRequest:
        """A request that has not ended."""
        live = self.requests.get(rid)
        assert live is not None
        return live

    async def add(self, *workers: FakeWorker) -> None:
        """Start workers; returns when they are linked."""
        for worker in workers:
            self.workers.append(worker)
            await self.registry.register(worker.entry(len(self.workers) - 1))
        await until(lambda: all(worker.link is not None for worker in workers))

    def request(
        self,
        rid: str = "r1",
        num_prompt: int = 40,
        max_tokens: int = 3,
        priority: int = DEFAULT_PRIORITY,
    ) -> GenerateRequest:
        return GenerateRequest(
            rid=rid,
            tenant="t",
            endpoint="chat",
            prompt_ids=tuple(range(num_prompt)),
            sampling=Sampling(max_tokens=max_tokens, temperature=0.0),
            timeout_s=60.0,
            limit_s=60.0,
            traceparent="00-" + "a" * 32 + "-" + "b" * 16 + "-01",
            received_ns=self.clock.wall_ns(),
            priority=priority,
        )

    async def _dial(
        self,
        host: str,
        port: int,
        hello: Hello,
        on_message: Callable[[Any, Message], None],
        on_closed: Callable[[Any], None],
    ) -> FakeLink:
        worker = self.workers[port]
        worker.num_dials += 1
        if not worker.reachable:
            raise PeerLostError("nobody answers")
        if worker.objection is not None:
            raise worker.objection
        worker.greetings.append(hello)
        worker.link = FakeLink(worker.hello(), on_message, on_closed)
        return worker.link


@asynccontextmanager
async def started(bench: Bench) -> AsyncIterator[Bench]:
    bench.core.start()
    try:
        yield bench
    finally:
        await bench.core.close()


async def settle() -> None:
    """Let everything that can run without time run."""
    for _ in range(TURNS):
        await asyncio.sleep(0)


async def until(condition: Callable[[], bool], limit_s: float = 5.0) -> None:
    """Wait for loops that keep real time."""
    async with asyncio.timeout(limit_s):
        while not condition():  # noqa: ASYNC110 -- the loops under test have no event for it
            await asyncio.sleep(0.005)
