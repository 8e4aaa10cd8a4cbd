"""The life of an attempt on a prefill worker.

ASSIGN          room?  -> the engine queues the prompt, an offer opens its KV for reading
first chunk     START to the gateway, which now picks the decode worker
every chunk     its blocks are published; decode reads them while the next chunk computes
last chunk      token 1 to the gateway, SEAL to decode (or END if token 1 was the last)
RELEASE         decode has a verified copy, the blocks are free
CANCEL          at any time: reading is refused, then the engine forgets the attempt
"""

from shared.clock import Clock
from shared.errors import ProtocolError
from shared.link.server import Peer
from shared.loops import Loops
from shared.protocol import Assign, Attempt, Cancel, Message, Ping, TokenRun
from shared.transfer.transport import KVTransport, Offer
from shared.worker.attempts import HeldAttempt
from shared.worker.channel import Abort, Add, Event, Refused, Release, Scheduled, StepReport
from shared.worker.engine_sender import EngineSender
from shared.worker.outbox import Outbox
from shared.worker.specs import assigned_sequence
from shared.worker.stages import held_span, prefill_span, queue_span
from shared.worker.state import WorkerState


class PrefillService:
    """Joins gateway frames, the engine and the transport. All calls on the event loop."""

    def __init__(
        self,
        state: WorkerState,
        outbox: Outbox,
        engine: EngineSender,
        transport: KVTransport,
        clock: Clock,
        advertised_address: str = "",
    ) -> None:
        self._state = state
        self._advertised_address = advertised_address
        self._outbox = outbox
        self._engine = engine
        self._transport = transport
        self._clock = clock
        self._offers: dict[Attempt, Offer] = {}
        state.traffic = transport.traffic

    @property
    def transfer_address(self) -> str:
        """Where decode workers pull from."""
        return self._advertised_address or self._transport.address

    @property
    def loops(self) -> Loops:
        return self._transport.loops

    async def start(self) -> None:
        await self._transport.start()

    async def close(self) -> None:
        await self._transport.close()

    def on_message(self, peer: Peer, message: Message) -> None:
        match message:
            case Assign(mode="prefill"):
                self._assign(peer, message)
            case Cancel(rid, epoch):
                self._forget(Attempt(rid, epoch))
            case Ping(seq):
                self._outbox.pong(peer, seq)
            case _:
                raise ProtocolError(f"a prefill worker takes no {type(message).__name__}")

    def on_event(self, event: Event) -> None:
        match event:
            case Scheduled():
                self._schedule(event)
            case StepReport():
                self._report(event)
            case Refused():
                self._lose(event)

    def on_gateway_lost(self, peer: Peer) -> None:
        """Its requests are gone with it: only the owner could have used them."""
        for held in self._state.attempts.of_peer(peer):
            self._forget(held.attempt)

    def on_released(self, attempt: Attempt) -> None:
        """Step 9: decode holds a verified copy, or the lease ran out."""
        self._offers.pop(attempt, None)
        held = self._drop(attempt)
        if held is not None:
            self._engine.send(Release(attempt))
            self._outbox.stages(held, held_span(held, self._clock.wall_ns()))

    def _assign(self, peer: Peer, message: Assign) -> None:
        """Step 4: accept the prompt or refuse it; nothing in between."""
        attempt = Attempt(message.rid, message.epoch)
        reason = self._state.refusal(message.inc, len(message.token_ids))
        if reason is not None:
            self._outbox.refuse(peer, attempt, reason)
            return
        if self._state.attempts.is_stale(attempt):
            return
        older = self._state.attempts.superseded_by(attempt)
        if older is not None:
            self._forget(older.attempt)
        self._state.attempts.hold(
            HeldAttempt(
                attempt,
                peer,
                message.traceparent,
                num_uncomputed_tokens=len(message.token_ids),
                accepted_ns=self._clock.wall_ns(),
            )
        )
        self._offers[attempt] = self._transport.offer(attempt, message.ticket)
        if _hands_over(message):
            num_blocks = self._state.num_blocks_for(len(message.token_ids))
            self._state.expect_hand_over(attempt, num_blocks)
        self._engine.send(Add(assigned_sequence(message, self._state.block_size)))

    def _schedule(self, event: Scheduled) -> None:
        """Step 5: the first chunk is scheduled; the gateway may pick the decode worker."""
        for attempt, num_cached in event.started:
            held = self._state.attempts.get(attempt)
            if held is not None:
                held.started_ns = event.start_ns
                held.num_cached_tokens = num_cached
                held.num_uncomputed_tokens -= num_cached
                self._outbox.start(held)

    def _report(self, report: StepReport) -> None:
        """Step 6 begins here: what is complete is published, SEAL follows token 1."""
        self._state.note_engine(report.load, report.counters)
        self._state.attempts.note_chunks(report.chunks, report.end_ns)
        runs = self._send_tokens(report)
        for attempt, piece in report.pieces:
            if attempt in self._offers:
                self._offers[attempt].publish(piece)
        for attempt, run in report.sealed:
            if attempt in self._offers:
                self._state.attempts[attempt].sealed_ns = report.end_ns
                self._offers[attempt].seal(run)
        for attempt in report.ended:
            if attempt in self._offers:
                self._offers.pop(attempt).end()
            self._drop(attempt)
        for held, run in runs:
            if run.finish_reason is None:
                self._tell_stages(held, report)

    def _send_tokens(self, report: StepReport) -> list[tuple[HeldAttempt, TokenRun]]:
        """Token 1 goes to the gateway before anything else happens: TTFT ends here. If it ends
        the request too, its stages go first, so that they are there when the gateway sums up."""
        runs: list[tuple[HeldAttempt, TokenRun]] = []
        for run in report.tokens:
            held = self._state.attempts.get(Attempt(run.rid, run.epoch))
            if held is not None:
                runs.append((held, run))
                if run.finish_reason is not None:
                    self._tell_stages(held, report)
        self._outbox.tokens(runs)
        return runs

    def _tell_stages(self, held: HeldAttempt, report: StepReport) -> None:
        self._outbox.stages(held, queue_span(held), prefill_span(held, report.end_ns))

    def _lose(self, refused: Refused) -> None:
        held = self._state.attempts.get(refused.attempt)
        if held is not None and refused.too_long:
            self._outbox.refuse(held.peer, held.attempt, "too_long")
        elif held is not None:
            self._outbox.fail(held, "refused", refused.message)
        self._forget(refused.attempt)

    def _forget(self, attempt: Attempt) -> None:
        """CANCEL: refuse further reads, then let the engine reuse the blocks."""
        offer = self._offers.pop(attempt, None)
        if offer is not None:
            offer.withdraw()
        if self._drop(attempt) is not None:
            self._engine.send(Abort(attempt))

    def _drop(self, attempt: Attempt) -> HeldAttempt | None:
        self._state.traffic.forget(attempt)
        return self._state.attempts.drop(attempt)


def _hands_over(message: Assign) -> bool:
    """False if token 1 is the request's last: prefill ends it itself."""
    num_output_tokens = len(message.token_ids) - message.num_prompt_tokens
    return num_output_tokens + 1 < message.sampling.max_tokens
