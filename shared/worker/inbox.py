"""Handles messages of gateways and events of the engine: what both roles do alike.

`Node._on_message` has checked every field (`acceptance.py`) before a message gets here. What
differs between the roles is their `Service`.
"""

from typing import Protocol

from shared.clock import Clock
from shared.errors import ProtocolError
from shared.link.server import Peer
from shared.protocol import Assign, Attempt, Cancel, Message, Ping, Receive
from shared.transfer.transport import KVTransport
from shared.worker.attempts.table import HeldAttempt
from shared.worker.channel import Event, Refused, Scheduled, StepReport
from shared.worker.outbox import Outbox
from shared.worker.state import WorkerState


class Service(Protocol):
    """What one role does with an attempt; all calls on the event loop."""

    @property
    def transport(self) -> KVTransport:
        """Its way to the other pool."""

    async def start(self) -> None: ...
    async def close(self) -> None: ...

    def check(self, message: Assign | Receive) -> None:
        """ProtocolError if this role does no such work."""

    def begin(self, message: Assign | Receive) -> None:
        """The attempt is held now: have the engine do its work."""

    def on_event(self, event: Event) -> None:
        """What the engine says, once it is noted for all attempts it concerns."""

    def forget(self, attempt: Attempt) -> None:
        """Drop it and everything of it, whatever its state; nothing if it is not held."""


class Inbox:
    """Frames and events in the order they come; nothing here waits."""

    def __init__(self, state: WorkerState, outbox: Outbox, service: Service, clock: Clock) -> None:
        self._state = state
        self._outbox = outbox
        self._service = service
        self._clock = clock

    def on_message(self, peer: Peer, message: Message) -> None:
        match message:
            case Assign() | Receive():
                self._take(peer, message)
            case Cancel(attempt):
                self._service.forget(attempt)
            case Ping(seq):
                self._outbox.pong(peer, seq)
            case _:
                raise ProtocolError(f"a worker takes no {type(message).__name__}")

    def on_event(self, event: Event) -> None:
        """Step 5 begins here: the first chunk is scheduled, and START lets the gateway pick the
        decode worker."""
        state = self._state
        match event:
            case Scheduled():
                state.alone = event.alone
                self._outbox.started(state.attempts.start(event))
            case StepReport():
                state.alone = event.alone
                state.note_engine(event.load, event.counters, event.gauges)
                state.note_step(event)
                self._outbox.scored(event.scored)
            case Refused():
                self._lose(event)
        self._service.on_event(event)

    def on_gateway_lost(self, peer: Peer) -> None:
        """Its requests are gone with it: only the owner could have used them."""
        for held in self._state.attempts.of_peer(peer):
            self._service.forget(held.attempt)

    def _take(self, peer: Peer, message: Assign | Receive) -> None:
        """Step 4: accept the work or refuse it; nothing in between. A same or higher epoch that
        is here already makes this one late."""
        self._service.check(message)
        attempts = self._state.attempts
        held = HeldAttempt.of(message, peer, self._clock.wall_ns())
        older = attempts.superseded_by(held.attempt)
        reason = self._state.refusal(
            message.incarnation, held.num_uncomputed_tokens, new=not older, early=held.early
        )
        if reason is not None:
            self._outbox.refuse(peer, held.attempt, reason)
        elif not attempts.is_stale(held.attempt):
            if older is not None:
                self._service.forget(older.attempt)
            attempts.hold(held)
            self._service.begin(message)

    def _lose(self, refused: Refused) -> None:
        held = self._state.attempts.get(refused.attempt)
        self._service.forget(refused.attempt)
        if held is not None and refused.reason:
            self._outbox.refuse(held.peer, held.attempt, refused.reason, refused.message)
        elif held is not None:
            self._outbox.fail(held, "refused", refused.message)
