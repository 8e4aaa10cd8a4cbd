"""The life of an attempt on a decode worker.

    RECEIVE         the engine reserves all prompt blocks at once, waiting in order for room
    reserved        pull: published pieces are read while prefill still computes
    verified        token 1 is repeated to the gateway, the engine decodes on from it
    every step      one frame per gateway with all its tokens
    pressure        the youngest sequence is handed back; the gateway retries it elsewhere
    CANCEL          a pull ends its piece in flight first; then the engine forgets the attempt

ASSIGN with mode local (aggregated, no prefill worker, slow link) computes the prompt here instead.
"""

from services.decode.pulls import Pulls
from shared.clock import Clock
from shared.errors import ProtocolError
from shared.link.server import Peer
from shared.loops import Loops
from shared.protocol import Assign, Attempt, Cancel, Message, Ping, Receive, TokenRun
from shared.transfer.transport import Pulled
from shared.worker.attempts import HeldAttempt
from shared.worker.channel import (
    Abort,
    Add,
    Adopt,
    Event,
    Refused,
    Reserve,
    Reserved,
    Scheduled,
    StepReport,
)
from shared.worker.engine_sender import EngineSender
from shared.worker.outbox import Outbox
from shared.worker.specs import assigned_sequence, received_sequence
from shared.worker.stages import decode_span, prefill_span, queue_span, transfer_span
from shared.worker.state import WorkerState


class DecodeService:
    """Joins gateway frames, the engine and the pulls. All calls on the event loop."""

    def __init__(
        self,
        state: WorkerState,
        outbox: Outbox,
        engine: EngineSender,
        pulls: Pulls,
        clock: Clock,
    ) -> None:
        self._state = state
        self._outbox = outbox
        self._engine = engine
        self._pulls = pulls
        self._clock = clock
        self._awaited: dict[Attempt, Receive] = {}
        """attempts whose reservation or pull is under way"""
        state.traffic = pulls.traffic
        transport = pulls.transport_name
        self._transfer_counters = {
            "kv_transfers": f"kv_transfers:{transport}",
            "kv_transfer_bytes": f"kv_transfer_bytes:{transport}",
            "kv_transfer_blocks": f"kv_transfer_blocks:{transport}",
        }
        for name in (*self._transfer_counters.values(), "prompt_tokens:transferred"):
            state.count(name, 0)

    transfer_address = ""
    """a decode worker offers nothing yet"""

    @property
    def loops(self) -> Loops:
        return self._pulls.loops

    async def start(self) -> None:
        """Nothing to open: pulls dial out."""

    async def close(self) -> None:
        await self._pulls.close()

    def on_message(self, peer: Peer, message: Message) -> None:
        match message:
            case Receive():
                self._receive(peer, message)
            case Assign(mode="local"):
                self._assign(peer, message)
            case Cancel(rid, epoch):
                self._forget(Attempt(rid, epoch))
            case Ping(seq):
                self._outbox.pong(peer, seq)
            case _:
                raise ProtocolError(f"a decode worker takes no {type(message).__name__}")

    def on_event(self, event: Event) -> None:
        match event:
            case Scheduled():
                self._schedule(event)
            case StepReport():
                self._report(event)
            case Refused(attempt, text, too_long):
                self._lose(attempt, "too_long" if too_long else "refused", text)

    def on_gateway_lost(self, peer: Peer) -> None:
        """Its requests are gone with it: only the owner could have used them."""
        for held in self._state.attempts.of_peer(peer):
            self._forget(held.attempt)

    def _receive(self, peer: Peer, message: Receive) -> None:
        """Step 5: a prefill worker has started on this prompt; take its blocks here."""
        attempt = Attempt(message.rid, message.epoch)
        if message.inc != self._state.inc:
            self._outbox.refuse(peer, attempt, "incarnation")
        elif self._state.draining:
            self._outbox.refuse(peer, attempt, "draining")
        elif self._hold(peer, message, num_uncomputed_tokens=0):
            self._awaited[attempt] = message
            self._engine.send(Reserve(received_sequence(message, self._state.block_size)))
            self._pulls.keep(message)

    def _assign(self, peer: Peer, message: Assign) -> None:
        """Step 4, local: this worker computes the prompt too, for the recorded reason."""
        attempt = Attempt(message.rid, message.epoch)
        if not message.reason:
            raise ProtocolError("local prefill needs a reason")
        reason = self._state.refusal(message.inc, len(message.token_ids))
        if reason is not None:
            self._outbox.refuse(peer, attempt, reason)
        elif self._hold(peer, message, len(message.token_ids)):
            self._engine.send(Add(assigned_sequence(message, self._state.block_size)))

    def _hold(self, peer: Peer, message: Receive | Assign, num_uncomputed_tokens: int) -> bool:
        """False when the same or a later epoch is here already."""
        attempt = Attempt(message.rid, message.epoch)
        attempts = self._state.attempts
        if attempts.is_stale(attempt):
            return False
        older = attempts.superseded_by(attempt)
        if older is not None:
            self._forget(older.attempt)
        now_ns = self._clock.wall_ns()
        held = HeldAttempt(attempt, peer, message.traceparent, num_uncomputed_tokens, now_ns)
        held.mode = "receive" if isinstance(message, Receive) else "local"
        attempts.hold(held)
        return True

    def _schedule(self, event: Scheduled) -> None:
        for attempt, num_cached in event.started:
            held = self._state.attempts.get(attempt)
            if held is not None and not held.started_ns:
                held.started_ns = event.start_ns
                held.num_cached_tokens = num_cached
                held.num_uncomputed_tokens -= num_cached
                self._outbox.start(held)
        for reserved in event.reserved:
            self._pull(reserved)
        for attempt in event.handed_back:
            held = self._state.attempts.drop(attempt)
            if held is not None:
                self._tell_decode(held)
                self._outbox.hand_back(held, "kv_pressure")

    def _report(self, report: StepReport) -> None:
        """Step 7: what one engine step did, to the gateways it concerns."""
        self._state.note_engine(report.load, report.counters)
        self._state.attempts.note_chunks(report.chunks, report.end_ns)
        self._send_tokens(report)
        for attempt in report.finished:
            self._state.attempts.drop(attempt)

    def _send_tokens(self, report: StepReport) -> None:
        runs: list[tuple[HeldAttempt, TokenRun]] = []
        for run in report.tokens:
            held = self._state.attempts.get(Attempt(run.rid, run.epoch))
            if held is not None:
                self._note_tokens(held, run, report)
                runs.append((held, run))
        self._outbox.tokens(runs)
        for held, run in runs:
            if held.first_token_ns == report.end_ns and run.finish_reason is None:
                self._outbox.stages(held, queue_span(held), prefill_span(held, report.end_ns))

    def _note_tokens(self, held: HeldAttempt, run: TokenRun, report: StepReport) -> None:
        """The first token of a prompt computed here belongs to prefill, all others to decode.

        The stages of a request go before its last token, so that they are there when the gateway
        sums up; that decode began is told at once, because the gateway may end it at any time."""
        last = run.finish_reason is not None
        if held.started_ns and not held.first_token_ns:
            held.first_token_ns = report.end_ns
            if last:
                self._outbox.stages(held, queue_span(held), prefill_span(held, report.end_ns))
            return
        began = not held.first_decode_ns
        if began:
            held.first_decode_ns = report.start_ns
        held.last_token_ns = report.end_ns
        num_repeated = int(began and held.mode == "receive")
        held.num_decoded_tokens += len(run.token_ids) - num_repeated
        if last:
            self._tell_decode(held)
        elif began:
            self._outbox.note_stages(held, decode_span(held))

    def _tell_decode(self, held: HeldAttempt) -> None:
        """Decode is over here; nothing to tell if it never began."""
        if held.first_decode_ns:
            self._outbox.stages(held, decode_span(held))

    def _pull(self, reserved: Reserved) -> None:
        """Step 6: the blocks are ours to fill; read what prefill publishes."""
        message = self._awaited.get(reserved.attempt)
        if message is None:
            self._engine.send(Abort(reserved.attempt))
            return
        held = self._state.attempts.get(reserved.attempt)
        if held is not None:
            held.reserved_ns = self._clock.wall_ns()
        num_absent_blocks = len(reserved.block_ids) - reserved.num_present_blocks
        self._state.expect_hand_over(reserved.attempt, num_absent_blocks, message.p_inc)
        self._pulls.start(
            message,
            reserved,
            on_pulled=lambda pulled: self._adopt(reserved, pulled),
            on_failed=lambda code, text: self._lose(reserved.attempt, code, text),
        )

    def _adopt(self, reserved: Reserved, pulled: Pulled) -> None:
        """The KV is verified. The engine's first frame repeats token 1, so a lost or overtaken
        frame of prefill's costs nothing (R3)."""
        attempt = reserved.attempt
        message = self._awaited.pop(attempt, None)
        held = self._state.attempts.get(attempt)
        if held is None or message is None or pulled.run is None:
            self._state.attempts.drop(attempt)
            self._engine.send(Abort(attempt))
            return
        held.adopted_ns = pulled.end_ns
        self._count_transfer(len(message.token_ids), reserved, pulled)
        self._engine.send(Adopt(attempt, pulled.run))
        self._outbox.stages(held, transfer_span(pulled, self._pulls.transport_name))

    def _count_transfer(self, num_tokens: int, reserved: Reserved, pulled: Pulled) -> None:
        """Tokens: those of the prompt whose KV was not here before."""
        count, names = self._state.count, self._transfer_counters
        count(names["kv_transfers"])
        count(names["kv_transfer_bytes"], pulled.num_bytes)
        count(names["kv_transfer_blocks"], pulled.num_blocks)
        share = pulled.num_blocks / max(len(reserved.block_ids), 1)
        count("prompt_tokens:transferred", round(num_tokens * share))

    def _lose(self, attempt: Attempt, code: str, text: str) -> None:
        self._awaited.pop(attempt, None)
        self._pulls.stop_keeping(attempt)
        held = self._state.attempts.drop(attempt)
        self._engine.send(Abort(attempt))
        if held is not None and code == "too_long":
            self._outbox.refuse(held.peer, attempt, "too_long")
        elif held is not None:
            self._outbox.fail(held, code, text)

    def _forget(self, attempt: Attempt) -> None:
        """CANCEL. Blocks under a read in flight stay quarantined until it has ended (R18)."""
        self._awaited.pop(attempt, None)
        held = self._state.attempts.drop(attempt)
        if held is None:
            return
        self._tell_decode(held)
        self._pulls.cancel(attempt, lambda: self._engine.send(Abort(attempt)))
