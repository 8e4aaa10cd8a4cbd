"""The life of an attempt on a prefill worker.

ASSIGN          room?  -> the engine queues the prompt, an offer opens its KV for reading
first chunk     START to the gateway, which now picks the decode worker
every chunk     its blocks are announced; decode reads each layer group once it is written
last chunk      token 1 to the gateway, SEAL to decode (or END if token 1 was the last)
RELEASE         decode has a verified copy, the blocks are free
CANCEL          at any time: reading is refused, then the engine forgets the attempt

ASSIGN, the first chunk and CANCEL come here through `shared.worker.inbox`.
"""

from shared.clock import Clock
from shared.engine.scheduling.sequence import SequenceSpec
from shared.errors import ProtocolError
from shared.protocol import Assign, Attempt, Receive, TokenRun, Work
from shared.transfer.transport import KVTransport, Offer
from shared.worker.attempts import HeldAttempt
from shared.worker.channel import Abort, Add, Event, Release, Scheduled, StepReport
from shared.worker.engine_sender import EngineSender
from shared.worker.outbox import Outbox
from shared.worker.spans import held_span, prefill_span, queue_span
from shared.worker.state import WorkerState


class PrefillService:
    """Joins attempts, the engine and the transport. All calls on the event loop."""

    def __init__(
        self,
        state: WorkerState,
        outbox: Outbox,
        engine: EngineSender,
        transport: KVTransport,
        clock: Clock,
    ) -> None:
        self._state = state
        self._outbox = outbox
        self._engine = engine
        self.transport = transport
        self._clock = clock
        self._offers: dict[Attempt, Offer] = {}
        state.traffic = transport.traffic
        transport.on_release = self.on_released

    async def start(self) -> None:
        await self.transport.start()

    async def close(self) -> None:
        await self.transport.close()

    def check(self, message: Assign | Receive) -> None:
        if not isinstance(message, Assign) or message.mode != "prefill":
            raise ProtocolError("a prefill worker takes prompts to hand over, nothing else")

    def begin(self, message: Assign | Receive) -> None:
        """Step 4: the prompt is accepted."""
        assert isinstance(message, Assign)
        work = message.work
        self._offers[work.attempt] = self.transport.offer(work.attempt, message.ticket)
        if _hands_over(work):
            num_blocks = self._state.num_blocks_for(len(work.token_ids))
            self._state.expect_hand_over(work.attempt, num_blocks)
        self._engine.send(Add(SequenceSpec.of(work, self._state.block_size, "prefill")))

    def on_event(self, event: Event) -> None:
        if isinstance(event, Scheduled):
            self._announce(event)
        if isinstance(event, StepReport):
            self._report(event)

    def forget(self, attempt: Attempt) -> None:
        """CANCEL: refuse further reads, then let the engine reuse the blocks."""
        offer = self._offers.pop(attempt, None)
        if offer is not None:
            offer.withdraw()
        if self._drop(attempt) is not None:
            self._engine.send(Abort(attempt))

    def on_released(self, attempt: Attempt) -> None:
        """Step 9: decode holds a verified copy, or the lease ran out."""
        self._offers.pop(attempt, None)
        held = self._drop(attempt)
        if held is not None:
            self._engine.send(Release(attempt))
            self._outbox.stages(held, held_span(held, self._clock.wall_ns()))

    def _announce(self, scheduled: Scheduled) -> None:
        """Step 6 begins here: what the step completes is published layer group by layer group,
        while it runs."""
        for announced in scheduled.announced:
            offer = self._offers.get(announced.attempt)
            if offer is not None:
                offer.publish(announced.piece, announced.step)

    def _report(self, report: StepReport) -> None:
        """SEAL follows token 1."""
        runs = self._send_tokens(report)
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
        runs = self._state.attempts.with_runs(report.tokens)
        for held, run in runs:
            if run.finish_reason is not None:
                self._tell_stages(held, report)
        self._outbox.tokens(runs)
        return runs

    def _tell_stages(self, held: HeldAttempt, report: StepReport) -> None:
        self._outbox.stages(held, queue_span(held), prefill_span(held, report.end_ns))

    def _drop(self, attempt: Attempt) -> HeldAttempt | None:
        self._state.traffic.forget(attempt)
        return self._state.attempts.drop(attempt)


def _hands_over(work: Work) -> bool:
    """False if token 1 is the request's last: prefill ends it itself."""
    num_output_tokens = len(work.token_ids) - work.num_prompt_tokens
    return num_output_tokens + 1 < work.sampling.max_tokens
