"""The prompts whose KV a worker hands over, from ASSIGN to RELEASE.

A prefill worker offers all of its prompts. A decode worker that drains offers what it decodes: each
sequence comes back as a prompt whose KV the prefix cache has, but for the last few tokens.
"""

from shared.clock import Clock
from shared.engine.scheduling.sequence import SequenceSpec
from shared.protocol import Assign, Attempt, Work
from shared.transfer.transport import KVTransport, Offer
from shared.worker.attempts.spans import held_span
from shared.worker.attempts.table import HeldAttempt
from shared.worker.channel import Add, Release, Scheduled, StepReport
from shared.worker.engine_sender import EngineSender
from shared.worker.outbox import Outbox
from shared.worker.state import WorkerState


class Offers:
    """Joins the engine's prompts and the transport's offers. All calls on the event loop."""

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
        self._transport = transport
        self._clock = clock
        self._offers: dict[Attempt, Offer] = {}
        transport.on_release = self.on_released

    def begin(self, message: Assign) -> None:
        """Step 4: the prompt is accepted."""
        work = message.work
        self._offers[work.attempt] = self._transport.offer(work.attempt, message.ticket)
        if _hands_over(work):
            num_blocks = self._state.num_blocks_for(len(work.token_ids))
            self._state.expect_hand_over(work.attempt, num_blocks)
        self._engine.send(Add(SequenceSpec.of(work, self._state.block_size, "prefill")))

    def announce(self, scheduled: Scheduled) -> None:
        """Step 6 begins here: what the step completes is published layer group by layer group,
        while it runs."""
        for announced in scheduled.announced:
            offer = self._offers.get(announced.attempt)
            if offer is not None:
                offer.publish(announced.piece, announced.step)

    def seal(self, report: StepReport) -> None:
        """After token 1 was sent: decode may verify what is sealed, and what ended is over."""
        for attempt, run in report.sealed:
            if attempt in self._offers:
                self._state.attempts[attempt].sealed_ns = report.end_ns
                self._offers[attempt].seal(run)
        for attempt in report.ended:
            if attempt in self._offers:
                self._offers.pop(attempt).end()
            self.drop(attempt)

    def withdraw(self, attempt: Attempt) -> None:
        """Refuse further reads; nothing if it is not offered."""
        offer = self._offers.pop(attempt, None)
        if offer is not None:
            offer.withdraw()

    def on_released(self, attempt: Attempt) -> None:
        """Step 9: decode holds a verified copy, or the lease ran out."""
        self._offers.pop(attempt, None)
        held = self.drop(attempt)
        if held is not None:
            self._engine.send(Release(attempt))
            self._outbox.stages(held, held_span(held, self._clock.wall_ns()))

    def drop(self, attempt: Attempt) -> HeldAttempt | None:
        """Forget it and what it was to move; None if it was not held."""
        self._state.traffic.forget(attempt)
        return self._state.attempts.drop(attempt)


def _hands_over(work: Work) -> bool:
    """False if token 1 is the request's last: prefill ends it itself."""
    num_output_tokens = len(work.token_ids) - work.num_prompt_tokens
    return num_output_tokens + 1 < work.sampling.max_tokens
