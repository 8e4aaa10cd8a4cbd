"""A running worker: its service between the engine, the gateways' links and Redis."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from shared.clock import Clock, SystemClock
from shared.kv.layout import pool_name
from shared.kv.memory import KVMemory
from shared.link.server import LinkServer, Peer
from shared.loops import Loops
from shared.mover.client import MoverClient
from shared.mover.rank_movers import RankMovers
from shared.protocol import Assign, Hello, Message, Ping, Receive
from shared.queue.redis_backlog import RedisBacklog
from shared.settings.groups import Settings
from shared.state.keys import Keys
from shared.state.kv_feed import KVPublisher
from shared.state.redis_client import RedisClient
from shared.state.redis_kv_events import RedisKVEvents
from shared.state.redis_registry import RedisWorkerRegistry
from shared.state.registry import WorkerEntry
from shared.telemetry.logs import num_dropped_lines
from shared.telemetry.span_sink import build_span_sink
from shared.transfer_address import TransferAddress
from shared.worker.acceptance import Acceptance
from shared.worker.backlog_puller import BacklogPuller
from shared.worker.canary.canary import RETRY_S, Canary
from shared.worker.channel import Event, Ready, StepReport
from shared.worker.engine_client import EngineClient, EngineExitError
from shared.worker.engine_sender import EngineSender
from shared.worker.identity import Identity
from shared.worker.inbox import Inbox, Service
from shared.worker.outbox import Outbox
from shared.worker.registration import Registration
from shared.worker.sessions import Sessions
from shared.worker.state import WorkerState

logger = logging.getLogger(__name__)

ROOM_STEPS = 2
"""prompt tokens a worker accepts beyond what runs, in steps' budgets"""
HANG_UP_LIMIT_S = 1.0
"""a gateway that reads nothing does not keep this process from ending"""
KV_CANARY = "kv_canary"
"""a loop's name"""


@dataclass(frozen=True)
class Parts:
    """What a role's service is built from."""

    settings: Settings
    incarnation: str
    state: WorkerState
    outbox: Outbox
    engine: EngineSender
    memory: KVMemory
    pools: Sequence[int]
    """descriptors of each rank's pool, where other workers map those and not `memory`"""
    mover: MoverClient | RankMovers
    clock: Clock


class Node:
    """Routes frames and events to the service; decides nothing itself."""

    def __init__(
        self,
        settings: Settings,
        identity: Identity,
        engine: EngineClient,
        ready: Ready,
        build_service: Callable[[Parts], Service],
    ) -> None:
        assert engine.memory is not None and engine.mover is not None, "the engine is started"
        self._network, self._worker = settings.network, settings.worker
        self._identity, self._ready, self._engine = identity, ready, engine
        self._pool = pool_name(identity.served_model, ready.layout)
        self._state = _state_of(identity, ready)
        self._state.note_engine(ready.load, {})
        self._redis = RedisClient(settings.cell.redis)
        self._keys = Keys()
        self._publisher = KVPublisher(RedisKVEvents(self._redis, self._keys), identity.incarnation)
        self._acceptance = Acceptance(ready.vocab_size, ready.max_model_len)
        self._sessions = Sessions()
        self._links = LinkServer(
            self._hello,
            self._on_message,
            self._on_gateway_lost,
            self._on_gateway,
            cell_secret=settings.network.cell_secret,
            max_frame_bytes=self._acceptance.max_frame_bytes,
        )
        backlog = RedisBacklog(self._redis, self._keys, self._pool, settings.limits.max_backlog)
        self._puller = BacklogPuller(
            self._state, backlog, self._publisher, lambda: self._links.peers
        )
        self._sink = build_span_sink(
            settings.telemetry.otlp_endpoint,
            f"baton-{identity.role}",
            {"service.instance.id": identity.incarnation},
        )
        self._outbox = Outbox(self._state, self._sink)
        clock = SystemClock()
        self._service = build_service(
            Parts(
                settings,
                identity.incarnation,
                self._state,
                self._outbox,
                engine,
                engine.memory,
                engine.pools,
                engine.mover,
                clock,
            )
        )
        self._inbox = Inbox(self._state, self._outbox, self._service, clock)
        self._registration: Registration | None = None
        self._canary: Canary | None = None  # stays so where nobody asks whether it is ready
        self._loops = Loops()
        self._closing = False
        engine.on_event = self._on_event
        engine.on_stall = self._on_stall

    async def open(self) -> None:
        """Listen for decode workers and gateways, and be registered from now on; OSError when a
        port is taken."""
        await self._service.start()
        port = await self._links.start(self._network.host, self._worker.port)
        entry = self._identity.entry(self._ready, self._pool, port)
        registry = RedisWorkerRegistry(self._redis, self._keys)

        def entry_now() -> WorkerEntry:
            return replace(
                entry,
                load=self._state.load(),
                num_attempts=len(self._state.attempts),
                unready=self._canary.problem if self._canary is not None else "",
            )

        self._registration = Registration(registry, entry_now, self._publisher, self._on_drain)
        logger.info("gateways dial %s:%d%s", entry.host, entry.port, self._pulled_at())
        self._registration.start(self._loops)
        self._puller.start(self._loops)
        if self._worker.probe_port:
            self._canary = Canary(
                replace(entry, host=self._network.host, port=port),
                registry,
                self._service.transport,
                self._engine,
                self._ready.vocab_size,
                self._network.cell_secret,
            )
            self._loops.start(KV_CANARY, self._move_canary, RETRY_S)

    async def leave(self, drain_limit_s: float) -> None:
        """Take no new work; let what runs finish, within the limit; give the rest back (R10)."""
        self._state.leaving = True
        await self._loops.stop(KV_CANARY)  # its attempts would be waited for
        if self._registration is not None:
            await self._registration.withdraw()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(drain_limit_s):
                while len(self._state.attempts):  # noqa: ASYNC110 -- 20 ms is soon enough
                    await asyncio.sleep(0.02)
        self.hand_back("draining")

    def hand_back(self, reason: str) -> None:
        """Give all attempts back: that they end here is no fault of theirs, nor of this worker.
        The shortest go first: they wait least for it elsewhere."""
        for held in self._state.attempts.shortest_first():
            self._outbox.hand_back(held, reason)

    def lose_engine(self, error: EngineExitError) -> None:
        """What the engine had goes elsewhere. Of one that died by itself the gateways are told
        which attempts it computed then: one of them may be the cause."""
        if error.cause == "killed":
            self.hand_back("killed")
        if error.cause != "itself":
            return
        alone = self._state.alone
        for held in self._state.attempts.shortest_first():
            if held.attempt == alone or (alone is None and held.may_be_computed):
                self._outbox.crash(held, str(error), alone=alone is not None)
            else:
                self._outbox.hand_back(held, "engine_died")

    async def close(self) -> None:
        """Hang up first: gateways retry elsewhere what still runs here. Offers stand until the
        transport closes: a reader then sees a source that is lost, not one that withdrew."""
        self._closing = True
        await self._loops.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HANG_UP_LIMIT_S):
                await self._links.close()
        await self._service.close()
        if self._registration is not None:
            await self._registration.withdraw()
        self._sink.close()
        await self._redis.close()

    def _pulled_at(self) -> str:
        address = self._transfer_address()
        return f", decode workers pull KV from {address}" if address else ""

    def _transfer_address(self) -> TransferAddress:
        """Where decode workers pull from; nowhere when nothing is offered."""
        own = self._service.transport.address
        return replace(own, port=own.port and (self._worker.transfer_advertise or own.port))

    @property
    def unready(self) -> str:
        """Why it is not ready; empty when gateways have been able to find it, KV has come here from
        a peer, and it takes new work."""
        if self._state.draining:
            return "it drains"
        if self._registration is None or not self._registration.is_known:
            return "it is not registered in redis yet"
        if self._state.stalled:
            return "the engine stands still"
        return self._canary.awaited if self._canary is not None else ""

    @property
    def trouble(self) -> str:
        """Which background loops fail; empty when none does."""
        return "; ".join(
            filter(None, (self._loops.trouble(), self._service.transport.loops.trouble()))
        )

    def _count_own(self) -> None:
        """Bring what this process counts elsewhere up to date."""
        counters = self._state.counters
        for name, count in {
            **self._loops.failures(),
            **self._service.transport.loops.failures(),
        }.items():
            counters[f"loop_failures:{name}"] = count
        for kind, count in self._redis.errors.items():
            counters[f"redis_errors:{kind}"] = count
        counters["log_lines_dropped"] = num_dropped_lines()

    async def _move_canary(self) -> None:
        """Listed first: of two workers that start together one at least finds the other."""
        assert self._registration is not None and self._canary is not None
        await self._registration.until_known()
        await self._canary.turn()

    def _hello(self) -> Hello:
        address, token_s = self._transfer_address(), self._ready.prefill_token_s
        load, room_tokens = self._state.load(), self._state.room_limit_tokens
        return self._identity.hello(self._pool, load, address, token_s, room_tokens)

    def _on_drain(self, asked: bool) -> None:
        if asked != self._state.asked_to_drain:
            logger.info("asked to drain" if asked else "no longer asked to drain")
        self._state.asked_to_drain = asked

    def _on_stall(self, stalled: bool) -> None:
        logger.warning("the engine stands still" if stalled else "the engine goes on")
        self._state.stalled = stalled

    def _on_event(self, event: Event) -> None:
        if isinstance(event, StepReport):
            self._publisher.note(event.stored, event.removed)
        self._inbox.on_event(self._canary.take(event) if self._canary is not None else event)

    def _on_message(self, peer: Peer, message: Message) -> None:
        if isinstance(message, Ping):
            self._count_own()
            self._puller.note(peer, message.num_backlogged)
        if isinstance(message, Assign | Receive):
            rejection = self._acceptance.rejection(message)
            if rejection is not None:
                self._outbox.refuse(peer, message.work.attempt, *rejection)
                return
        self._inbox.on_message(peer, message)

    def _on_gateway(self, peer: Peer) -> None:
        """A gateway that dials again names what it still owns here; it gave up the rest."""
        self._sessions.admit(peer.hello)
        for held in self._state.attempts:
            if held.peer.incarnation != peer.incarnation:
                continue
            held.peer = peer
            if held.attempt not in peer.hello.attempts:
                self._service.forget(held.attempt)

    def _on_gateway_lost(self, peer: Peer) -> None:
        self._puller.forget(peer)
        if not self._closing:
            self._inbox.on_gateway_lost(peer)


def _state_of(identity: Identity, ready: Ready) -> WorkerState:
    num_places = ready.step_sequences if identity.role == "decode" else 0
    room_tokens = ROOM_STEPS * ready.step_tokens
    return WorkerState(identity.incarnation, room_tokens, ready.layout, num_places)
