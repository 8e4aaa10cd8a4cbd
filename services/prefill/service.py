"""The life of an attempt on a prefill worker.

ASSIGN          room?  -> the engine queues the prompt, an offer opens its KV for reading
first chunk     START to the gateway, which now picks the decode worker
every chunk     its blocks are announced; decode reads each layer group once it is written
last chunk      token 1 to the gateway, SEAL to decode (or END if token 1 was the last)
RELEASE         decode has a verified copy, the blocks are free
CANCEL          at any time: reading is refused, then the engine forgets the attempt

What decode does alike: `shared.worker.inbox` and `shared.worker.attempts.offers`.
"""

from shared.clock import Clock
from shared.errors import ProtocolError
from shared.protocol import Assign, Attempt, Receive, TokenRun
from shared.transfer.transport import KVTransport
from shared.worker.attempts.offers import Offers
from shared.worker.attempts.spans import prefill_span, queue_span
from shared.worker.attempts.table import HeldAttempt
from shared.worker.channel import Abort, Event, Scheduled, StepReport
from shared.worker.engine_sender import EngineSender
from shared.worker.outbox import Outbox
from shared.worker.state import WorkerState


class PrefillService:
    """Joins attempts, the engine and the offers. All calls on the event loop."""

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
        self._offers = Offers(state, outbox, engine, transport, clock)
        state.traffic = transport.traffic

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
        self._offers.begin(message)

    def on_event(self, event: Event) -> None:
        if isinstance(event, Scheduled):
            self._offers.announce(event)
        if isinstance(event, StepReport):
            self._report(event)

    def forget(self, attempt: Attempt) -> None:
        """CANCEL: refuse further reads, then let the engine reuse the blocks."""
        self._offers.withdraw(attempt)
        if self._offers.drop(attempt) is not None:
            self._engine.send(Abort(attempt))

    def _report(self, report: StepReport) -> None:
        """SEAL follows token 1."""
        runs = self._send_tokens(report)
        self._offers.seal(report)
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
