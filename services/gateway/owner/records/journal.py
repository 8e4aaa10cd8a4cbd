"""Notes what becomes of each request: in its receipt, in the gateway's totals, for observers."""

from typing import Any, Literal

from services.gateway.owner.counters import DispatchCounters
from services.gateway.owner.live_request import LiveRequest
from services.gateway.owner.machine.effects import End, WriteFinish
from services.gateway.owner.records.gpu_time import saved_gpu_ms
from services.gateway.owner.records.hand_overs import HandOvers
from services.gateway.owner.records.observer import Observer
from services.gateway.owner.records.receipt import STAGES, AttemptNote, Receipt
from services.gateway.owner.records.receipts import Receipts
from services.gateway.owner.records.route_text import route_text
from services.gateway.owner.records.row import Row
from services.gateway.owner.view.recent import Recent, RecentStages
from shared.clock import Clock
from shared.message_parts.step_costs import StepCosts
from shared.protocol import Spans
from shared.telemetry import attributes as names

RECEIPT_WAIT_S = 0.05


class Journal:
    """The only writer of receipts. Called on the event loop."""

    def __init__(self, counters: DispatchCounters, observer: Observer, clock: Clock) -> None:
        self.counters = counters
        self._observer = observer
        self._clock = clock
        self._receipts = Receipts()
        self.hand_overs = HandOvers()
        self.attainment = observer.attainment
        self.recent_ttft_ms = Recent()
        self.recent_stages_ms = RecentStages(STAGES)

    def accepted(self, live: LiveRequest) -> None:
        self._receipts.add(live.receipt)

    def waits(self, live: LiveRequest, reason: Literal["no_worker", "no_room"]) -> None:
        """For a worker: there is none, or none has room."""
        live.receipt.waited = reason

    def held(self, live: LiveRequest) -> None:
        """It waits for the retry budget."""
        live.receipt.waited = "retry_budget"
        self.counters.retries_held += 1

    def assigned(self, live: LiveRequest, worker_id: str) -> None:
        """The epoch has its route."""
        receipt, route = live.receipt, live.assignment.route
        assert route is not None
        note = AttemptNote(live.machine.epoch, route.mode, route.reason, route_text(route))
        earlier = receipt.attempts[-1:]
        note.queued_ns = earlier[0].ended_ns if earlier else receipt.accepted_ns
        note.assigned_ns = self._clock.wall_ns()
        note.prefill = worker_id
        note.decode = worker_id if route.mode == "local" else ""
        receipt.attempts.append(note)
        self.counters.attempts[live.assignment.cause] += 1

    def assigned_at_once(self) -> None:
        """Without waiting in the line."""
        self.counters.direct_assigns += 1

    def pulled(self, num_requests: int) -> None:
        """Assigned because a worker popped them."""
        self.counters.backlog_pulls += num_requests

    def decode_chosen(self, live: LiveRequest, worker_id: str) -> None:
        live.receipt.attempts[-1].decode = worker_id

    def started(self, live: LiveRequest, step_costs: StepCosts, ranks: int) -> None:
        """The first chunk is scheduled, on a worker whose steps take so long on its GPUs."""
        receipt = live.receipt
        now_ns = receipt.attempts[-1].started_ns = self._clock.wall_ns()
        if not receipt.first_token_ns:
            receipt.started_ns = now_ns
            num_cached = min(live.num_cached_tokens, receipt.prompt_tokens)
            receipt.saved_gpu_ms = saved_gpu_ms(step_costs, ranks, num_cached)

    def first_token(self, live: LiveRequest) -> bool:
        """The first token of an epoch; True if it is the request's own first."""
        receipt = live.receipt
        now_ns = receipt.attempts[-1].first_token_ns = self._clock.wall_ns()
        if receipt.first_token_ns:
            return False
        receipt.first_token_ns = now_ns
        receipt.cached_tokens = min(live.num_cached_tokens, receipt.prompt_tokens)
        if receipt.admitted:
            self._note_first_token(receipt)
        return True

    def admitted(self, live: LiveRequest) -> None:
        """Redis has recorded it: from now on its client may have tokens."""
        live.receipt.admitted = True
        if live.receipt.first_token_ns and not live.receipt.outcome:
            self._note_first_token(live.receipt)

    def retried(self, live: LiveRequest, cause: str) -> None:
        """The attempt has ended, the request has not."""
        attempt, now_ns = live.receipt.attempts[-1], self._clock.wall_ns()
        attempt.finish(cause, now_ns)
        if live.receipt.first_token_ns:
            silent_s = self._clock.monotonic_s() - live.timing.last_token_s
            attempt.last_token_ns = now_ns - int(silent_s * 1e9)

    def so_far(self, live: LiveRequest) -> None:
        """Its tokens and gaps, which are not written down one by one."""
        live.receipt.worst_gap_s = live.timing.worst_gap_s
        if live.machine.active:  # else `finishing` has said how many the client gets
            live.receipt.completion_tokens = len(live.machine.token_ids)

    def finishing(self, live: LiveRequest, effect: WriteFinish) -> None:
        live.receipt.completion_tokens, live.receipt.code = effect.num_tokens, effect.code

    def ended(self, live: LiveRequest, end: End) -> None:
        receipt = live.receipt
        receipt.worst_gap_s = live.timing.worst_gap_s
        receipt.outcome, receipt.finish_reason = end.outcome, end.finish_reason or ""
        receipt.code = end.failure.code if end.failure else receipt.code
        receipt.ended_ns = self._clock.wall_ns()
        if receipt.attempts and not receipt.attempts[-1].end:
            receipt.attempts[-1].finish(end.outcome, receipt.ended_ns)
        self.counters.requests[end.outcome] += 1
        self._note_stages(receipt)
        self._observer.ended(live.request, receipt)

    def spans(self, message: Spans, worker_id: str, ranks: int) -> None:
        """They may come after the end, so they go to the receipt, not to the request. `ranks`: GPUs
        of the worker; 0: not known."""
        receipt = self._receipts.get(message.attempt.rid)
        if receipt is not None:
            epoch = message.attempt.epoch
            receipt.ranks[worker_id] = ranks
            for span in message.spans:
                receipt.note(epoch, worker_id, span)
                if span.name == names.SPAN_TRANSFER:
                    self.hand_overs.note(receipt.prefill_of(epoch), worker_id, span)
            self._note_stages(receipt)

    def refused(self, status: int) -> None:
        """For lack of room or of a worker, before it became a request."""
        self.counters.refused[status] += 1

    def receipt(self, rid: str) -> dict[str, Any] | None:
        """What happened to a request; None if it is not among the last 1,000."""
        return self._receipts.body(rid)

    def rows(self) -> list[Row]:
        """A line for each of the last 1,000 requests."""
        return self._receipts.rows()

    async def final_receipt(self, rid: str) -> dict[str, Any] | None:
        """The receipt of a request that has ended, after a short wait for the workers' last
        words on it."""
        await self._receipts.wait_complete(rid, RECEIPT_WAIT_S)
        return self.receipt(rid)

    def _note_first_token(self, receipt: Receipt) -> None:
        ttft_ns = self._clock.wall_ns() - receipt.received_ns
        self.recent_ttft_ms.note(self._clock.monotonic_s(), ttft_ns / 1e6)
        self._observer.first_token(ttft_ns / 1e9)

    def _note_stages(self, receipt: Receipt) -> None:
        """Once the request has ended and workers have told what its stages are made of."""
        if receipt.first_token_ns and not receipt.stages_noted and receipt.complete:
            receipt.stages_noted = True
            self.recent_stages_ms.note(self._clock.monotonic_s(), receipt.critical_path_ms())
