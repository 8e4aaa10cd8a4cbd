"""The life of an attempt on a decode worker.

    RECEIVE         the engine reserves all prompt blocks at once, waiting in order for room
    reserved        pull: published pieces are read while prefill still computes
    verified        token 1 is repeated to the gateway, the engine decodes on from it
    every step      one frame per gateway with all its tokens
    pressure        what is cheapest to restore is handed back; the gateway retries it elsewhere
    CANCEL          a pull ends its piece in flight first; then the engine forgets the attempt

ASSIGN with mode local (aggregated, no prefill worker, slow link) computes the prompt here instead.
ASSIGN with mode prefill takes the place of an attempt that decodes here, while the worker drains:
its KV is handed over as a prefill worker's is (`shared.worker.attempts.offers`). All of these come
through `shared.worker.inbox`.
"""

from services.decode.pulls import Pulls
from shared.clock import Clock
from shared.engine.scheduling.sequence import SequenceSpec
from shared.errors import ProtocolError
from shared.protocol import Assign, Attempt, Receive, TokenRun
from shared.transfer.transport import Pulled
from shared.worker.attempts.offers import Offers
from shared.worker.attempts.spans import decode_span, prefill_span, queue_span, transfer_span
from shared.worker.attempts.table import HeldAttempt
from shared.worker.channel import (
    Abort,
    Add,
    Adopt,
    Event,
    Nearing,
    Reserve,
    Reserved,
    Scheduled,
    StepReport,
)
from shared.worker.engine_sender import EngineSender
from shared.worker.outbox import Outbox
from shared.worker.state import WorkerState

TRANSFER_COUNTERS = "kv_transfers", "kv_transfer_bytes", "kv_transfer_blocks", "kv_transfer_busy_us"
"""each by the way that the blocks came by"""


class DecodeService:
    """Joins attempts, the engine and the pulls. All calls on the event loop."""

    def __init__(
        self,
        state: WorkerState,
        outbox: Outbox,
        engine: EngineSender,
        pulls: Pulls,
        clock: Clock,
        *,
        prefix_cache: bool = True,
    ) -> None:
        """`prefix_cache`: the engine finds the KV of what it has decoded."""
        self._state = state
        self._outbox = outbox
        self._engine = engine
        self._pulls = pulls
        self._clock = clock
        self._awaited: dict[Attempt, Receive] = {}
        """attempts whose reservation or pull is under way"""
        self.transport = pulls.transport
        self._offers = Offers(state, outbox, engine, self.transport, clock)
        self._prefix_cache = prefix_cache
        state.traffic = self.transport.traffic
        for way in self.transport.ways:
            for name in TRANSFER_COUNTERS:
                state.count(f"{name}:{way}", 0)
        state.count("prompt_tokens:transferred", 0)

    async def start(self) -> None:
        """Peers pull what it decoded; without a prefix cache it would have to compute it again."""
        if self._prefix_cache:
            await self.transport.start()

    async def close(self) -> None:
        await self._pulls.close()

    def check(self, message: Assign | Receive) -> None:
        if isinstance(message, Receive):
            return
        if message.mode == "prefill" and not self.transport.address:
            raise ProtocolError("this worker hands nothing over: it names no transfer address")
        if message.mode == "local" and not message.reason:
            raise ProtocolError("local prefill needs a reason")

    def begin(self, message: Assign | Receive) -> None:
        """Step 5: a prefill worker has started on this prompt; take its blocks here. ASSIGN is
        step 4: this worker computes the prompt too, for the recorded reason, or to hand it over."""
        work, block_size = message.work, self._state.block_size
        if isinstance(message, Assign) and message.mode == "prefill":
            self._offers.begin(message)
            return
        if isinstance(message, Assign):
            self._engine.send(Add(SequenceSpec.of(work, block_size, "full", message.reason)))
            return
        held = self._state.attempts[work.attempt]
        held.source = message.prefill_incarnation
        held.num_awaited_tokens = self._state.num_blocks_for(len(work.token_ids)) * block_size
        self._awaited[work.attempt] = message
        self._engine.send(Reserve(SequenceSpec.of(work, block_size, "decode")))
        self._pulls.keep(message)

    def on_event(self, event: Event) -> None:
        match event:
            case Scheduled():
                self._schedule(event)
            case StepReport():
                self._report(event)

    def forget(self, attempt: Attempt) -> None:
        """CANCEL. Blocks under a read in flight stay quarantined until it has ended (R18)."""
        self._awaited.pop(attempt, None)
        self._offers.withdraw(attempt)
        held = self._offers.drop(attempt)
        if held is None:
            return
        self._tell_decode(held)
        self._pulls.cancel(attempt, lambda: self._engine.send(Abort(attempt)))

    def _schedule(self, event: Scheduled) -> None:
        """Before the step computes: blocks that are ours or may be read, sequences given back."""
        self._offers.announce(event)
        for reserved in event.reserved:
            self._pull(reserved)
        for attempt in event.handed_back:
            held = self._state.attempts.drop(attempt)
            if held is not None:
                self._tell_decode(held)
                self._outbox.hand_back(held, "kv_pressure")

    def _report(self, report: StepReport) -> None:
        """Step 7: what one engine step did, to whom it concerns, and the load that is left then."""
        self._send_tokens(report)
        self._offers.seal(report)

    def _send_tokens(self, report: StepReport) -> None:
        runs = self._state.attempts.with_runs(report.tokens)
        for held, run in runs:
            self._note_tokens(held, run, report)
        for attempt in report.finished:
            self._state.attempts.drop(attempt)
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
        self._state.expect_hand_over(
            reserved.attempt, num_absent_blocks, message.prefill_incarnation
        )
        self._pulls.start(
            message,
            reserved,
            on_nearing=lambda: self._near(reserved.attempt),
            on_pulled=lambda pulled: self._adopt(reserved, pulled),
            on_failed=lambda code, text: self._lose(reserved.attempt, code, text),
        )

    def _near(self, attempt: Attempt) -> None:
        self._state.attempts.note_near(attempt)
        self._engine.send(Nearing(attempt))

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
        held.adopted_ns = self._clock.wall_ns()  # first: the engine may start its step at once
        self._engine.send(Adopt(attempt, pulled.run))
        self._count_transfer(len(message.work.token_ids), reserved, pulled)
        self._outbox.stages(held, transfer_span(pulled))

    def _count_transfer(self, num_tokens: int, reserved: Reserved, pulled: Pulled) -> None:
        """Tokens: those of the prompt whose KV was not here before."""
        numbers = 1, pulled.num_bytes, pulled.num_blocks, round(pulled.busy_s * 1e6)
        for name, number in zip(TRANSFER_COUNTERS, numbers, strict=True):
            self._state.count(f"{name}:{pulled.transport}", number)
        share = pulled.num_blocks / max(len(reserved.block_ids), 1)
        self._state.count("prompt_tokens:transferred", round(num_tokens * share))

    def _lose(self, attempt: Attempt, code: str, text: str) -> None:
        """The pull failed."""
        held = self._state.attempts.get(attempt)
        self.forget(attempt)
        if held is not None:
            self._outbox.fail(held, code, text)
