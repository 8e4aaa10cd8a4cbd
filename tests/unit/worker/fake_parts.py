"""Stand-ins around a service that write down, in one list, everything that leaves it."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from shared.engine.scheduling.load import EngineLoad
from shared.errors import KVTransferError
from shared.kv.layout import KVLayout
from shared.kv.memory import Piece
from shared.link.server import Peer
from shared.loops import Loops
from shared.protocol import (
    Assign,
    Attempt,
    Hello,
    Message,
    Receive,
    Sampling,
    Spans,
    TokenRun,
    Work,
)
from shared.telemetry.tracing import NoSpans
from shared.transfer.traffic import Traffic
from shared.transfer.transport import OnRelease, Pulled, PullRequest
from shared.transfer_address import TransferAddress
from shared.worker.channel import Command, StepReport
from shared.worker.outbox import Outbox
from shared.worker.state import WorkerState
from tests.support.fakes.manual_clock import ManualClock

INC = "worker.1"
ROOM_TOKENS = 20
LAYOUT = KVLayout("fake", "float32", 1, 2, 1, 2, 4)
LOAD = EngineLoad(0, 0, 8, 8, 0, 0)


class Journal:
    """What happened, in order: (who, what)."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, Any]] = []

    def note(self, who: str, what: Any) -> None:
        self.entries.append((who, what))

    def take(self, who: str = "") -> list[Any]:
        """Entries so far, of one party or all; forgets everything."""
        entries, self.entries = self.entries, []
        return [what for name, what in entries if name == who] if who else entries


class FakePeer(Peer):
    """A gateway's link."""

    def __init__(self, journal: Journal, name: str = "gateway") -> None:
        self.hello = Hello("gateway", f"{name}.1", "pool")
        self._journal = journal
        self._name = name

    def send(self, message: Message) -> None:
        self._journal.note(self._name, message)


class FakeEngine:
    """Takes commands."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def send(self, command: Command) -> None:
        self._journal.note("engine", command)


@dataclass
class FakeOffer:
    """Prefill's side of one attempt."""

    journal: Journal

    def publish(self, piece: Piece, step: int | None = None) -> None:
        self.journal.note("offer", ("publish", piece.first_block, step))

    def seal(self, run: TokenRun) -> None:
        self.journal.note("offer", ("seal", run.token_ids))

    def end(self) -> None:
        self.journal.note("offer", "end")

    def withdraw(self) -> None:
        self.journal.note("offer", "withdraw")


FAKE = TransferAddress("fake:1")


@dataclass
class FakeTransport:
    """Offers are journalled; a pull ends when the test says how."""

    journal: Journal
    ways: Sequence[str] = ("fake",)
    address: TransferAddress = FAKE
    pulls: dict[Attempt, "asyncio.Future[Pulled]"] = field(default_factory=dict)
    requests: dict[Attempt, PullRequest] = field(default_factory=dict)
    quarantine: "asyncio.Event | None" = None
    """a cancelled pull returns only once this is set"""
    kept: set[Attempt] = field(default_factory=set)
    """leases held for a reservation that waits"""
    traffic: Traffic = field(default_factory=lambda: Traffic(ManualClock()))
    loops: Loops = field(default_factory=Loops)

    def __post_init__(self) -> None:
        self.on_release: OnRelease = lambda attempt: None

    async def start(self) -> None:
        self.journal.note("transport", "start")

    def offer(self, attempt: Attempt, ticket: str) -> FakeOffer:
        self.journal.note("transport", ("offer", attempt, ticket))
        return FakeOffer(self.journal)

    async def pull(self, request: PullRequest) -> Pulled:
        self.journal.note("transport", ("pull", request.attempt))
        self.requests[request.attempt] = request
        future = self.pulls[request.attempt] = asyncio.get_running_loop().create_future()
        try:
            pulled: Pulled = await future
        except asyncio.CancelledError:
            if self.quarantine is not None:
                await self.quarantine.wait()
            self.journal.note("transport", ("stopped", request.attempt))
            raise
        return pulled

    async def keep(self, request: PullRequest) -> None:
        self.kept.add(request.attempt)
        try:
            await asyncio.Event().wait()
        finally:
            self.kept.discard(request.attempt)

    async def close(self) -> None:
        self.journal.note("transport", "close")


@dataclass
class Stage:
    """A journal and what a service is built from."""

    journal: Journal = field(default_factory=Journal)
    clock: ManualClock = field(default_factory=ManualClock)

    def __post_init__(self) -> None:
        self.state = WorkerState(INC, ROOM_TOKENS, LAYOUT)
        self.outbox = Outbox(self.state, NoSpans())
        self.engine = FakeEngine(self.journal)
        self.transport = FakeTransport(self.journal)
        self.peer = FakePeer(self.journal)

    def frames(self, peer: str = "gateway") -> list[Any]:
        """What the gateway got since the last look, spans left out."""
        return [item for item in self.journal.take(peer) if not isinstance(item, Spans)]

    def spans(self) -> dict[str, tuple[int, int, dict[str, Any]]]:
        """By name: start ns, end ns, attributes."""
        return {
            span.name: (span.start_ns, span.end_ns, span.attributes)
            for frame in self.journal.take("gateway")
            if isinstance(frame, Spans)
            for span in frame.spans
        }


def make_work(
    rid: str = "r",
    epoch: int = 0,
    num_tokens: int = 5,
    token_ids: tuple[int, ...] | None = None,
    **changes: Any,
) -> Work:
    token_ids = tuple(range(num_tokens)) if token_ids is None else token_ids
    fields: dict[str, Any] = {
        "num_prompt_tokens": num_tokens,
        "hash_root": bytes(32),
        "sampling": Sampling(8),
    }
    return Work(Attempt(rid, epoch), token_ids, **{**fields, **changes})


def make_assign(
    rid: str = "r",
    epoch: int = 0,
    num_tokens: int = 5,
    *,
    incarnation: str = INC,
    mode: Literal["prefill", "local"] = "prefill",
    reason: Literal["", "agg", "slow_link"] = "",
    ticket: str = "secret",
    **of_work: Any,
) -> Assign:
    return Assign(make_work(rid, epoch, num_tokens, **of_work), incarnation, mode, reason, ticket)


def make_receive(
    rid: str = "r",
    epoch: int = 0,
    *,
    incarnation: str = INC,
    prefill_incarnation: str = "prefill.1",
    source: TransferAddress = FAKE,
    ticket: str = "secret",
    **of_work: Any,
) -> Receive:
    return Receive(
        make_work(rid, epoch, **of_work), incarnation, prefill_incarnation, source, ticket
    )


def make_report(start_ns: int = 0, end_ns: int = 0, **fields: Any) -> StepReport:
    return StepReport(start_ns, end_ns, LOAD, **fields)


def make_run(index: int, *tokens: int, rid: str = "r", epoch: int = 0, **more: Any) -> TokenRun:
    return TokenRun(rid, epoch, index, tokens, **more)


async def settle(condition: Callable[[], object], num_turns: int = 50) -> None:
    """Let tasks run until the condition holds."""
    for _ in range(num_turns):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came true")


class SomeTransferError(KVTransferError):
    pass
