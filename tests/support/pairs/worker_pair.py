"""Real services, engines and transports in one process, stepped by hand.

A `StepWorker` is what a worker's two processes are, without the processes: the real service on
one side of an in-memory channel, the real step loop on the other; every frame still goes
through its codec. A `PairGateway` owns requests the way a gateway does: it assigns, picks the
decode worker on START, sequences tokens and retries what is handed back or fails.
"""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from services.decode.pulls import Pulls
from services.decode.service import DecodeService
from services.gateway.owner.machine.sequencer import Sequencer
from services.prefill.service import PrefillService
from shared.clock import SystemClock
from shared.engine.engine import Engine
from shared.kv.block_hash import root_hash
from shared.link.server import Peer
from shared.protocol import (
    Assign,
    Attempt,
    Cancel,
    Fail,
    Handback,
    Hello,
    Message,
    Receive,
    Refuse,
    Sampling,
    Spans,
    Start,
    TokenLogprobs,
    TokenRun,
    Tokens,
    Work,
    decode,
    encode,
)
from shared.telemetry.tracing import NoSpans
from shared.transfer.transport import KVTransport
from shared.worker.channel import CHANNEL_CODEC, Command, Event
from shared.worker.engine_process import EngineLoop
from shared.worker.inbox import Inbox
from shared.worker.outbox import Outbox
from shared.worker.state import WorkerState
from tests.support.oracles.engine_integrity import check_engine

ROOM_TOKENS = 10**6
ROOT = root_hash(b"secret", "tenant")
COMPUTE_S = 60.0
"""of this process; what others compute meanwhile is not its time"""
WAIT_S = 20.0
LocalReason = Literal["agg", "no_prefill_worker", "slow_link"]


class StepChannel:
    """Both ends of the channel; `events` wait until the worker delivers them."""

    def __init__(self, stirred: asyncio.Event) -> None:
        self.commands: list[Command] = []
        self.events: deque[Event] = deque()
        self._stirred = stirred

    def put(self, command: Command) -> None:
        """io's end."""
        self.commands.append(CHANNEL_CODEC.decode(CHANNEL_CODEC.encode(command)))
        self._stirred.set()

    def send(self, event: Event) -> None:
        """The engine's end."""
        self.events.append(CHANNEL_CODEC.decode(CHANNEL_CODEC.encode(event)))

    def receive(self, limit_s: float | None = 0.0) -> list[Command]:
        del limit_s
        commands, self.commands = self.commands, []
        return commands


class StepSender:
    """`EngineSender` on a StepChannel."""

    def __init__(self, channel: StepChannel) -> None:
        self.send = channel.put


class RecordingPeer(Peer):
    """A gateway's link that keeps what it was sent."""

    def __init__(self) -> None:
        self.hello = Hello("gateway", "gateway.1", "pool")
        self.sent: list[Message] = []

    @property
    def closed(self) -> bool:
        return False

    def send(self, message: Message) -> None:
        self.sent.append(decode(encode(message)))


class StepWorker:
    """One worker. `turn` is one turn of its engine process; events reach the service at once,
    or with `deliver` where a test wants to be in between."""

    def __init__(
        self,
        role: Literal["prefill", "decode"],
        incarnation: str,
        engine: Engine,
        transport: KVTransport,
        stirred: asyncio.Event,
    ) -> None:
        self.incarnation = incarnation
        self.engine = engine
        self.channel = StepChannel(stirred)
        self.loop = EngineLoop(engine, self.channel)
        self.state = WorkerState(incarnation, ROOM_TOKENS, engine.memory.layout)
        self.transport = transport
        outbox, sender = Outbox(self.state, NoSpans()), StepSender(self.channel)
        self.service: PrefillService | DecodeService
        if role == "prefill":
            self.service = PrefillService(self.state, outbox, sender, self.transport, SystemClock())
        else:
            self.service = DecodeService(
                self.state, outbox, sender, Pulls(self.transport), SystemClock()
            )
        self.inbox = Inbox(self.state, outbox, self.service, SystemClock())

    @property
    def is_prefill(self) -> bool:
        return isinstance(self.service, PrefillService)

    @property
    def has_work(self) -> bool:
        return bool(self.engine.has_work or self.channel.commands)

    def turn(self) -> None:
        self.loop.turn()
        check_engine(self.engine)

    def deliver(self) -> bool:
        """Hand the engine's reports to the service; whether there were any."""
        delivered = bool(self.channel.events)
        while self.channel.events:
            self.inbox.on_event(self.channel.events.popleft())
        return delivered

    def local_prefill_tokens(self) -> int:
        return sum(
            count
            for name, count in self.engine.counters.totals().items()
            if name.startswith("local_prefill_tokens:")
        )

    def assert_all_blocks_back(self) -> None:
        load = self.engine.load()
        assert (load.held, load.free + load.cached) == (0, load.total)
        assert not self.engine.sequences and not len(self.state.attempts)


@dataclass
class PairRequest:
    """One request and what its client has."""

    rid: str
    prompt: tuple[int, ...]
    sampling: Sampling
    local: LocalReason | None = None
    """this reason: decode computes the prompt; None: it is handed over"""
    epoch: int = -1
    sequencer: Sequencer = field(default_factory=Sequencer)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: str | None = None
    num_cached_tokens: int = 0
    spans: list[str] = field(default_factory=list)

    @property
    def known_tokens(self) -> tuple[int, ...]:
        return (*self.prompt, *self.sequencer.token_ids)


class PairGateway:
    """Owner of requests over one prefill and one decode worker, with a link to each."""

    def __init__(self, prefill: StepWorker | None, decode_worker: StepWorker) -> None:
        self.requests: dict[str, PairRequest] = {}
        self.num_retries = 0
        self._prefill = prefill
        self._decode = decode_worker
        self._links = {
            w.incarnation: RecordingPeer() for w in (prefill, decode_worker) if w is not None
        }

    def submit(self, request: PairRequest) -> None:
        self.requests[request.rid] = request
        self._assign(request)

    def cancel(self, request: PairRequest) -> None:
        """The client left."""
        request.finish_reason = "cancelled"
        self._cancel_attempt(request)

    def retry(self, request: PairRequest) -> None:
        """Epoch + 1 with the tokens delivered so far."""
        self.num_retries += 1
        request.sequencer.forget_ahead()
        self._cancel_attempt(request)
        self._assign(request)

    def replace(self, old: StepWorker, new: StepWorker) -> None:
        """A worker died and came back; what ran there is tried again. Prefill is assumed to
        have had a part in every request that is not local."""
        del self._links[old.incarnation]
        self._links[new.incarnation] = RecordingPeer()
        if old is self._prefill:
            self._prefill = new
        else:
            self._decode = new
        for request in self.requests.values():
            if not request.finish_reason and not (old.is_prefill and request.local):
                self.retry(request)

    @property
    def done(self) -> bool:
        return all(request.finish_reason for request in self.requests.values())

    def pump(self, worker: StepWorker, limit: int | None = None) -> bool:
        """Take in what a worker said, in order; whether there was anything."""
        inbox = self._links[worker.incarnation].sent
        messages = inbox[:limit]
        del inbox[: len(messages)]
        for message in messages:
            self._take(message)
        return bool(messages)

    def unread(self, worker: StepWorker) -> list[Message]:
        return list(self._links[worker.incarnation].sent)

    def _take(self, message: Message) -> None:
        match message:
            case Tokens(_, runs):
                for run in runs:
                    self._take_run(run)
            case Start(attempt, _, num_cached):
                request = self.requests[attempt.rid]
                request.num_cached_tokens += num_cached
                if self._is_current(attempt) and request.local is None:
                    self._send_receive(request)
            case Refuse(attempt) | Fail(attempt) | Handback(attempt):
                if self._is_current(attempt):
                    self.retry(self.requests[attempt.rid])
            case Spans(attempt, _, spans):
                self.requests[attempt.rid].spans += [span.name for span in spans]
            case _:
                raise AssertionError(f"a gateway expects no {type(message).__name__}")

    def _take_run(self, run: TokenRun) -> None:
        if not self._is_current(run.attempt):
            return
        request = self.requests[run.rid]
        assert not request.sequencer.contradicts(run)
        for ready in request.sequencer.push(run):
            request.logprobs += ready.logprobs
            request.finish_reason = ready.finish_reason

    def _is_current(self, attempt: Attempt) -> bool:
        request = self.requests[attempt.rid]
        return request.epoch == attempt.epoch and not request.finish_reason

    def _cancel_attempt(self, request: PairRequest) -> None:
        for worker in (self._prefill, self._decode):
            if worker is not None:
                self._send(worker, Cancel(Attempt(request.rid, request.epoch)))

    def _assign(self, request: PairRequest) -> None:
        request.epoch += 1
        worker = self._prefill if request.local is None else self._decode
        assert worker is not None
        self._send(worker, self._assignment(request, worker))

    def _send(self, worker: StepWorker, message: Message) -> None:
        worker.inbox.on_message(self._links[worker.incarnation], decode(encode(message)))

    def _assignment(self, request: PairRequest, worker: StepWorker) -> Assign:
        return Assign(
            self._work(request),
            worker.incarnation,
            mode="prefill" if request.local is None else "local",
            reason=request.local or "",
            ticket=f"ticket {request.rid} {request.epoch}",
        )

    def _work(self, request: PairRequest) -> Work:
        return Work(
            Attempt(request.rid, request.epoch),
            request.known_tokens,
            len(request.prompt),
            ROOT,
            request.sampling,
        )

    def _send_receive(self, request: PairRequest) -> None:
        assert self._prefill is not None
        message = Receive(
            self._work(request),
            self._decode.incarnation,
            self._prefill.incarnation,
            source=self._prefill.transport.address,
            ticket=f"ticket {request.rid} {request.epoch}",
        )
        self._send(self._decode, message)


async def drive(
    gateway: PairGateway, workers: Sequence[StepWorker], stirred: asyncio.Event
) -> None:
    """Step everything until each request has its answer and each block is back."""

    def all_idle() -> bool:
        return gateway.done and all(not len(worker.state.attempts) for worker in workers)

    limit_s = time.process_time() + COMPUTE_S
    while not all_idle() or any(worker.has_work for worker in workers):
        assert time.process_time() < limit_s, "it turns round and round"
        stirred.clear()
        moved = False
        for worker in workers:
            moved |= gateway.pump(worker)
            if worker.has_work:
                worker.turn()
                moved = True
            moved |= worker.deliver()
        await asyncio.sleep(0)
        if not moved and not any(worker.has_work for worker in workers):
            async with asyncio.timeout(WAIT_S):
                await stirred.wait()
