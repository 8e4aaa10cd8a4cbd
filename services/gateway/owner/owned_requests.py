"""The requests this gateway owns, and doing what their state machines ask for.

Steps 2 to 5, 8 and 9 of a request meet here: ADMIT and FINISH go to Redis, ASSIGN, RECEIVE and
CANCEL to the links, tokens to the client. Effects are done in order and at once; nothing here
waits.
"""

import logging
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

from services.gateway.owner.avoidance import Avoidance, Key
from services.gateway.owner.counters import DispatchCounters
from services.gateway.owner.effects import (
    ChooseDecode,
    Deliver,
    Effect,
    End,
    Failure,
    Requeue,
    SendAssign,
    SendCancel,
    SendReceive,
    WriteFinish,
)
from services.gateway.owner.failures import Failures
from services.gateway.owner.generation import Delta, GenerateRequest
from services.gateway.owner.identity import GatewayIdentity
from services.gateway.owner.live_request import LiveRequest
from services.gateway.owner.observer import Observer
from services.gateway.owner.promises import Promises, prompt_key
from services.gateway.owner.receipts import Receipts
from services.gateway.owner.record_writer import RecordWriter
from services.gateway.owner.retries import Retries
from services.gateway.owner.router import (
    Placement,
    Prompt,
    Route,
    choose_decode,
    choose_placement,
    choose_worker,
    reachable,
)
from services.gateway.owner.throughput import Throughput
from services.gateway.owner.waiting_line import WaitingLine
from services.gateway.owner.worker_link import WorkerLink
from services.gateway.owner.worker_links import WorkerLinks
from shared.clock import Clock
from shared.errors import AttemptError, BatonError, OverloadedError
from shared.protocol import Cancel
from shared.queue.backlog import Backlog
from shared.state.prefix_index import PrefixIndex
from shared.state.records import Admission, FinalState, Outcome, RequestRecords, RequestState

logger = logging.getLogger(__name__)

_STATES: Mapping[str, FinalState] = {
    "done": RequestState.DONE,
    "failed": RequestState.FAILED,
    "cancelled": RequestState.CANCELLED,
}


StoreState = Literal["ok", "refuses writes", "away"]
"""what the last ADMIT found"""
_STORES: Mapping[Admission | None, StoreState] = {
    Admission.REFUSES_WRITES: "refuses writes",
    None: "away",
}


class OwnedRequests:
    """Live requests by rid, and everything their effects touch."""

    def __init__(
        self,
        identity: GatewayIdentity,
        links: WorkerLinks,
        records: RequestRecords,
        backlog: Backlog,
        index: PrefixIndex,
        clock: Clock,
        observer: Observer,
    ) -> None:
        self.live: dict[str, LiveRequest] = {}
        self.receipts = Receipts()
        self.counters = DispatchCounters()
        self.writer = RecordWriter(records)
        self.throughput = Throughput()
        self.promises = Promises()
        self.store: StoreState = "ok"
        self.line = WaitingLine(backlog, self.counters, clock, self._backlog_full, links.ping_all)
        self._observer = observer
        self._identity = identity
        self._links = links
        self._index = index
        self._clock = clock
        self._rng = random.Random(identity.g_inc)  # noqa: S311 -- spreads load, hides nothing
        self.failures = Failures()
        self.retries = Retries(self.line, self.counters, clock, self._rng, self)
        self._perform: Mapping[type, Callable[[LiveRequest, Any], list[Effect] | None]] = {
            SendAssign: self._send_assign,
            ChooseDecode: lambda live, _: self._choose_decode(live),
            SendReceive: self._send_receive,
            SendCancel: self._send_cancel,
            Requeue: self._requeue,
            Deliver: self._deliver,
            WriteFinish: self._write_finish,
            End: self._end,
        }

    def accept(self, live: LiveRequest, route: Route | None, placement: Placement | None) -> None:
        """Step 2: own a new request; on the link first, ADMIT to Redis in the same breath."""
        self.live[live.rid] = live
        self.throughput.note_work(self._clock.monotonic_s())
        self.retries.budget.note_admitted(len(live.token_ids), self._clock.monotonic_s())
        self.execute(live, self._place(live, route, placement))
        self.writer.admit(live.record, partial(self._admission, live))
        self.receipts.add(live.receipt)

    def execute(self, live: LiveRequest, effects: Iterable[Effect]) -> None:
        """Do what the state machine asked for, and what follows from that, in order."""
        todo = list(effects)
        for effect in todo:  # grows meanwhile
            todo += self._perform[type(effect)](live, effect) or ()

    # Where requests go

    def placement(self) -> Placement | None:
        """Where prompts may go now; None when nobody can serve."""
        return choose_placement(
            self._links.views, self._identity.topology, self._links.prefill_seen
        )

    def route(self, live: LiveRequest, placement: Placement | None) -> Route | None:
        """A worker with room. Who waits goes first, unless it is a retry: its client reads."""
        if placement is None or (len(self.line) and not live.machine.epoch):
            return None
        return self._choose_worker(live, placement)

    def place_waiting(self, min_age_s: float = 0.0) -> None:
        """Assign those that wait, in order, as far as there is room."""
        self._place_in_order(list(self.line.waiting(min_age_s)))

    def place_popped(self) -> None:
        """Assign those whose turn has come. The first that does not fit holds the others up,
        so that short prompts do not starve a long one."""
        self.counters.backlog_pulls += self._place_in_order(self.line.popped())

    def num_backlogged(self, worker: WorkerLink) -> int:
        """Waiting requests that a worker may pop: decode workers none while prefill lives."""
        num_waiting = self.line.num_backlogged
        placement = self.placement() if num_waiting else None
        may_pop = placement and any(view is worker.view for view in placement.workers)
        return num_waiting if may_pop else 0

    def _place_in_order(self, waiting: Sequence[LiveRequest]) -> int:
        for num_placed, live in enumerate(waiting):
            placement = self.placement()
            if placement is None:
                return num_placed
            route = self._choose_worker(live, placement)
            if route is None:
                self.line.join(live, no_room=True)
                return num_placed
            self.line.leave(live.rid)
            self.execute(live, self._assign(live, route))
        return len(waiting)

    def choose_missing_decodes(self) -> None:
        """A decode worker may live again: requests that prefill already runs need one."""
        for live in list(self.live.values()):
            if live.machine.wants_decode:
                self.execute(live, self._choose_decode(live))

    def _choose_worker(self, live: LiveRequest, placement: Placement) -> Route | None:
        prompt = self._prompt(live)
        placement = reachable(placement, self._links.views, prompt.avoidance)
        return choose_worker(placement, prompt, self._rng)

    def pool_tokens_per_s(self) -> float:
        """What the workers that take prompts now compute together; 0 if there are none."""
        placement = self.placement()
        return sum(1 / worker.token_s for worker in placement.workers) if placement else 0.0

    def any_idle(self) -> bool:
        """Whether a worker that takes prompts now has none waiting."""
        placement = self.placement()
        return placement is not None and any(worker.idle for worker in placement.workers)

    def num_uncached(self, live: LiveRequest) -> int:
        """Tokens that its next attempt has to compute where most of them are cached."""
        prompt = self._prompt(live)
        cached = max(prompt.holders.values(), default=0) * prompt.block_size
        return max(prompt.num_tokens - cached, 1)

    def _prompt(self, live: LiveRequest) -> Prompt:
        holders = self._index.holders(live.block_hashes)
        if live.prefer_inc is not None and live.prefer_inc == live.request.prefer_inc:
            holders[live.prefer_inc] = len(live.block_hashes)
        return Prompt(
            len(live.token_ids),
            self._identity.block_size,
            holders,
            live.prefer_inc,
            self._avoidance(live),
        )

    def _avoidance(self, live: LiveRequest) -> Avoidance:
        now_s = self._clock.monotonic_s()
        return Avoidance(
            live.failed | self.failures.closed_to(now_s),
            live.failed_again | self.failures.broken(now_s),
            frozenset(inc for key in live.failed for inc in key),
        )

    def _assign(self, live: LiveRequest, route: Route) -> list[Effect]:
        worker = self._links.get(route.inc)
        assert worker is not None
        worker.charge(live.rid, len(live.token_ids))
        live.progress_s = self._clock.monotonic_s()
        self.failures.note_choice((route.inc,), live.progress_s)
        live.note_route(route, worker.worker_id, self._clock.wall_ns())
        self.counters.attempts[live.cause] += 1
        return live.machine.assign(route.inc, route.mode, route.reason)

    def _place(
        self, live: LiveRequest, route: Route | None, placement: Placement | None
    ) -> list[Effect]:
        """At once if there is a route, else in the line."""
        if route is not None:
            self.counters.direct_assigns += 1
            return self._assign(live, route)
        live.receipt.waited = "no_room" if placement else "no_worker"
        self.line.join(live, no_room=placement is not None)
        return []

    def _choose_decode(self, live: LiveRequest) -> list[Effect]:
        """Step 5: prefill has started, so decode may reserve. With no decode worker alive the
        choice waits for one."""
        source = live.machine.p_inc or ""
        inc = choose_decode(self._links.views, self._prompt(live), source)
        worker = self._links.get(inc)
        if inc is None or worker is None:
            return []
        worker.charge(live.rid, 0)
        live.progress_s = self._clock.monotonic_s()
        for key in ((inc,), (source, inc)):
            self.failures.note_choice(key, live.progress_s)
        live.receipt.attempts[-1].decode = worker.worker_id
        return live.machine.choose_decode(live.machine.epoch, inc)

    # Effects

    def _send_assign(self, live: LiveRequest, effect: SendAssign) -> None:
        """Step 4: the prompt goes straight to the worker; Redis is not in the way."""
        worker = self._links.get(effect.inc)
        assert worker is not None
        worker.send(live.assign_message(effect))

    def _send_receive(self, live: LiveRequest, effect: SendReceive) -> list[Effect]:
        prefill, decode = self._links.get(effect.p_inc), self._links.get(effect.d_inc)
        assert decode is not None
        if prefill is None:
            return live.machine.lose_link(effect.p_inc)
        decode.send(live.receive_message(effect, prefill.hello.transfer_address))
        return []

    def _send_cancel(self, live: LiveRequest, effect: SendCancel) -> None:
        worker = self._links.get(effect.inc)
        if worker is not None:
            worker.send(Cancel(live.rid, effect.epoch, effect.reason))

    def _requeue(self, live: LiveRequest, effect: Requeue) -> None:
        logger.info("request %s: epoch %d after %s", live.rid, effect.epoch, effect.cause)
        live.cause = effect.cause
        live.receipt.attempts[-1].finish(effect.cause, self._clock.wall_ns())
        live.prefer_inc = effect.prefer_inc
        live.begin_epoch(self._identity.block_size)
        if effect.num_failures:
            self._note_failure(live, effect.blamed)
            self.retries.start(live, effect.num_failures)
        else:
            self.place_again(live)

    def place_again(self, live: LiveRequest) -> None:
        """To a worker, or into the line."""
        placement = self.placement()
        self.execute(live, self._place(live, self.route(live, placement), placement))

    def _note_failure(self, live: LiveRequest, key: Key) -> None:
        live.failed_again |= live.failed & {key}
        live.failed |= {key}
        self.failures.note_failure(key, self._clock.monotonic_s())

    def _deliver(self, live: LiveRequest, effect: Deliver) -> None:
        live.generation.put(Delta(effect.token_ids, effect.logprobs))

    def _write_finish(self, live: LiveRequest, effect: WriteFinish) -> None:
        """Step 9: outcome and usage are written once, before the client's last chunk."""
        self.line.leave(live.rid)
        receipt = live.receipt
        receipt.completion_tokens, receipt.code = effect.num_tokens, effect.code
        outcome = Outcome(
            state=_STATES[effect.outcome],
            code=effect.code,
            num_output_tokens=effect.num_tokens,
            num_cached_tokens=receipt.cached_tokens,
            num_attempts=max(len(receipt.attempts), 1),
        )
        self.writer.finish(live.record, outcome, partial(self._finished, live.rid))

    def _end(self, live: LiveRequest, effect: End) -> None:
        self.line.leave(live.rid)
        del self.live[live.rid]
        receipt = live.receipt
        receipt.outcome = effect.outcome
        receipt.code = effect.failure.code if effect.failure else receipt.code
        receipt.ended_ns = self._clock.wall_ns()
        if receipt.attempts and not live.machine.epoch > receipt.attempts[-1].epoch:
            receipt.attempts[-1].finish(effect.outcome, receipt.ended_ns)
        self.counters.requests[effect.outcome] += 1
        self.counters.prompt_tokens += receipt.prompt_tokens
        self.counters.completion_tokens += receipt.completion_tokens
        self.throughput.note_end(self._clock.monotonic_s(), idle=not self.live)
        if effect.failure is not None:
            logger.warning("request %s failed: %s", live.rid, effect.failure.code)
            live.generation.fail(_error(effect.failure))
        else:
            if effect.last is not None:
                last = effect.last
                live.generation.put(Delta(last.token_ids, last.logprobs, effect.finish_reason))
            live.generation.end()
        live.ended.set()
        self._observer.ended(live.request, receipt)

    # Answers from Redis

    def _finished(self, rid: str) -> None:
        """By id: a FINISH that is repeated while Redis is away holds no prompt."""
        if (live := self.live.get(rid)) is not None:
            self.execute(live, live.machine.finish_answered())

    def _admission(self, live: LiveRequest, answer: Admission | None) -> None:
        self.store = _STORES.get(answer, "ok")
        if answer is Admission.ADMITTED:
            live.note_admitted()
            self.execute(live, live.machine.admitted())
            return
        self.counters.admissions_refused["away" if answer is None else answer.value] += 1
        failure = self._refusal(answer)
        self.execute(live, live.machine.refused(failure, maybe_recorded=answer is None))

    def _refusal(self, answer: Admission | None) -> Failure:
        retry_after_s = self.throughput.per_end_s(self._clock.monotonic_s())
        if answer is None:
            text = "the state store does not answer"
            return Failure("state_unavailable", text, 503, retry_after_s)
        if answer is Admission.REFUSES_WRITES:
            text = "the state store refuses writes; its log or INFO memory says why"
            return Failure("state_unavailable", text, 503, retry_after_s)
        if answer is Admission.OVER_QUOTA:
            text = "too many live requests of this tenant"
            return Failure("over_quota", text, 429, retry_after_s)
        return Failure("request_id_taken", "the request id is in use", 409)

    def _backlog_full(self, live: LiveRequest) -> None:
        text = "no worker has room and the backlog is full"
        failure = Failure("overloaded", text, 429, self.promise_return(live.request))
        self.execute(live, live.machine.abandon(failure))

    def promise_return(self, request: GenerateRequest) -> float:
        """Seconds until this refused client may come back and finds a place."""
        now_s = self._clock.monotonic_s()
        key = prompt_key(request.tenant, request.prompt_ids)
        return self.promises.make(key, now_s, self.throughput.per_end_s(now_s))

    def returns(self, request: GenerateRequest) -> bool:
        """Whether this client was refused before and told to come now."""
        if not len(self.promises):
            return False
        key = prompt_key(request.tenant, request.prompt_ids)
        return self.promises.claim(key, self._clock.monotonic_s())


def _error(failure: Failure) -> BatonError:
    if failure.retry_after_s is not None:
        return OverloadedError(
            failure.message, retry_after_s=failure.retry_after_s, status=failure.status
        )
    return AttemptError(failure.message, code=failure.code, status=failure.status)
