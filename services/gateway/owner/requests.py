"""The requests this gateway owns, and doing what their state machines ask for.

Steps 2 to 5, 8 and 9 of a request meet here: ADMIT and FINISH go to Redis, ASSIGN, RECEIVE and
CANCEL to the links, tokens to the client. Effects are done in order and at once; nothing here
waits, and no token ever waits for Redis. Everything runs on one event loop.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from services.gateway.owner.generation import Delta, GenerateRequest
from services.gateway.owner.isolation import Isolation
from services.gateway.owner.links.worker_link import WorkerLink
from services.gateway.owner.links.worker_links import WorkerLinks
from services.gateway.owner.live_request import LiveRequest
from services.gateway.owner.machine.effects import (
    ChooseDecode,
    Deliver,
    Effect,
    End,
    Failure,
    Move,
    Requeue,
    SendAssign,
    SendCancel,
    SendReceive,
    WriteFinish,
)
from services.gateway.owner.placement.answer_time import AnswerTime
from services.gateway.owner.placement.placer import Placer
from services.gateway.owner.placement.return_times import ReturnTimes
from services.gateway.owner.placement.router import Route
from services.gateway.owner.records.journal import Journal
from services.gateway.owner.records.open_records import OpenRecords
from services.gateway.owner.records.refusals import error_of, refusal
from services.gateway.owner.retrying.retries import Retries
from services.gateway.owner.waiting_line import WaitingLine
from shared.clock import Clock
from shared.process import worker_id_of
from shared.protocol import Assign, Attempt, Cancel, Receive
from shared.state.records import Admission, FinalState, KeyTaken, Outcome, RequestState

logger = logging.getLogger(__name__)

LINE_FULL = "no worker has room, and too many wait for it"
NO_BLOCKS = "no worker has KV blocks left for prompt and max_tokens, and none is waited for"
_STATES: Mapping[str, FinalState] = {
    "done": RequestState.DONE,
    "failed": RequestState.FAILED,
    "cancelled": RequestState.CANCELLED,
}


class Requests:
    """Live requests by rid. What happens to one of them comes as effects of its state machine."""

    def __init__(
        self,
        links: WorkerLinks,
        placer: Placer,
        line: WaitingLine,
        records: OpenRecords,
        journal: Journal,
        returns: ReturnTimes,
        clock: Clock,
    ) -> None:
        self._links = links
        self._placer = placer
        self.convicts, self.trouble = placer.convicts, placer.trouble
        self._line = line
        self._records = records
        self._journal = journal
        self._returns = returns
        self._live: dict[str, LiveRequest] = {}
        self.isolated = Isolation(self._end_broken, clock)
        self._retries = Retries(self, line, placer, journal, clock)
        line.on_full = self._refuse
        self._perform: Mapping[type, Callable[[LiveRequest, Any], list[Effect] | None]] = {
            SendAssign: self._send_assign,
            ChooseDecode: lambda live, _: placer.choose_decode(live),
            SendReceive: self._send_receive,
            SendCancel: self._send_cancel,
            Requeue: self._requeue,
            Move: self._move,
            Deliver: self._deliver,
            WriteFinish: self._write_finish,
            End: self._end,
        }

    def __len__(self) -> int:
        return len(self._live)

    def get(self, rid: str) -> LiveRequest | None:
        """None: it has ended, or is not ours."""
        return self._live.get(rid)

    def all(self) -> list[LiveRequest]:
        return list(self._live.values())

    def accept(self, live: LiveRequest, route: Route | None) -> None:
        """Step 2: own a new request; on the link first, ADMIT to Redis in the same breath."""
        self._live[live.rid] = live
        self._returns.note_accepted()
        self._retries.note_admitted(live)
        self.execute(live, self._place(live, route))
        self._records.join(live.request, partial(self._admission, live))
        self._journal.accepted(live)  # last: it may pack an old receipt first, 0.2 ms

    def execute(self, live: LiveRequest, effects: Iterable[Effect]) -> None:
        """Do what the state machine asked for, and what follows from that, in order."""
        todo = list(effects)
        for effect in todo:  # grows meanwhile
            todo += self._perform[type(effect)](live, effect) or ()

    def for_each(
        self,
        event: Callable[[LiveRequest], Iterable[Effect]],
        by: Callable[[LiveRequest], int] | None = None,
    ) -> None:
        """An event of all requests, in this order or that of their acceptance. What it raises ends
        the one request it was about."""
        for live in sorted(self.all(), key=by) if by else self.all():
            with self.isolated(live):
                self.execute(live, event(live))

    def abandon_all(self, failure: Failure) -> None:
        self.for_each(lambda live: live.machine.abandon(failure))

    # The line

    def num_ahead(self, request: GenerateRequest) -> int:
        """Requests that wait for a worker, may be placed, and go before this one if it waits."""
        return self._line.num_ahead(request, self._placer.placement())

    def wait_s(self, num_ahead: int) -> float:
        """For a request with that number of others before it in the line."""
        return num_ahead * self._line.per_place_s

    def answer_time(self, live: LiveRequest, route: Route | None) -> AnswerTime:
        """Until its answer can be whole, if it goes that way; None: from its turn in the line."""
        return self._placer.answer_time(live, route)

    def lack_blocks(self, live: LiveRequest) -> bool:
        """It would have to wait for KV blocks, and is to be refused instead."""
        return not (live.work.accepted or self._placer.has_kv_room(live, self._live.values()))

    def route(self, live: LiveRequest) -> Route | None:
        """A worker with room. Those that wait may go first; a retry need not: its client reads."""
        goes = live.machine.epoch or self._line.lets_pass(live.request, self._placer.placement)
        return self._placer.route(live) if goes else None

    def place_waiting(self, min_age_s: float = 0.0) -> None:
        """Assign those that wait, in order, as far as there is room."""
        self._place_in_order(list(self._line.waiting(min_age_s)))

    def place_popped(self) -> None:
        """Assign those whose turn has come."""
        self._journal.pulled(self._place_in_order(self._line.popped()))

    def place_again(self, live: LiveRequest) -> None:
        """To a worker, or into the line."""
        with self.isolated(live):
            route = self.route(live)
            if route is None and live.assignment.full and not live.work.accepted:
                self._refuse(live, NO_BLOCKS)
            elif route is None and live.machine.strikes.crashes.any:
                self._retries.wait_for_room(live)  # not in the line: it holds nobody up
            else:
                self.execute(live, self._place(live, route))

    def choose_missing_decodes(self) -> None:
        """A decode worker may live again: requests that prefill already runs need one."""
        self.for_each(
            lambda live: self._placer.choose_decode(live) if live.machine.wants_decode else ()
        )

    def place_due(self, min_age_s: float) -> None:
        """Place all that may be by now, of the line those that have waited `min_age_s`."""
        self._placer.look()
        self.choose_missing_decodes()
        self._retries.start_held()
        self.place_popped()
        self.place_waiting(min_age_s)
        self._line.repeat_puts()

    def take_turn(self, rid: str) -> bool:
        """A worker popped it: its turn has come. False if it does not wait here."""
        if waits := self._line.note_popped(rid):
            self.place_popped()
        return waits

    def num_backlogged(self, worker: WorkerLink) -> int:
        """Waiting requests that a worker may pop."""
        num_waiting = self._line.num_backlogged
        return num_waiting if num_waiting and self._placer.takes_prompts(worker) else 0

    def _place_in_order(self, waiting: Sequence[LiveRequest]) -> int:
        """How many were placed, or ended."""
        num_placed = 0
        for live in self._line.going(waiting, self._placer.placement()):
            with self.isolated(live):
                route = self._placer.route(live)
                if route is None:
                    self._wait(live)
                    continue
                self._line.leave(live.rid)
                self.execute(live, self._placer.assign(live, route))
            num_placed += 1
        return num_placed

    def _place(self, live: LiveRequest, route: Route | None) -> list[Effect]:
        """At once if there is a route, else in the line."""
        if route is not None:
            self._line.charge_passing(live)
            self._journal.assigned_at_once()
            return self._placer.assign(live, route)
        self._journal.waits(live, "no_room" if self._wait(live) else "no_worker")
        return []

    def _wait(self, live: LiveRequest) -> bool:
        """Whether it waits for room, and not for any worker at all."""
        no_room = self._placer.placement() is not None
        self._line.join(live, no_room=no_room)
        return no_room

    def _refuse(self, live: LiveRequest, text: str = LINE_FULL) -> None:
        """Other gateways have filled the backlog, or no worker has the KV blocks."""
        self._journal.refused(429)
        after_s = self._returns.hint() if text == NO_BLOCKS else self._returns.promise(live.request)
        failure = Failure("overloaded", text, 429, after_s)
        self.execute(live, live.machine.abandon(failure))

    # Effects

    def _send_assign(self, live: LiveRequest, effect: SendAssign) -> None:
        """Step 4: the prompt goes straight to the worker; Redis is not in the way."""
        worker = self._links.get(effect.incarnation)
        assert worker is not None
        ticket = live.assignment.ticket
        worker.send(Assign(live.work, effect.incarnation, effect.mode, effect.reason, ticket))

    def _send_receive(self, live: LiveRequest, effect: SendReceive) -> list[Effect]:
        source, target = effect.prefill_incarnation, effect.decode_incarnation
        prefill, decode = self._links.get(source), self._links.get(target)
        assert decode is not None
        if prefill is None:
            return live.machine.lose_link(source)
        address, ticket = prefill.hello.transfer_address, live.assignment.ticket
        decode.send(Receive(live.work, target, source, address, ticket))
        return []

    def _send_cancel(self, live: LiveRequest, effect: SendCancel) -> None:
        if (worker := self._links.get(effect.incarnation)) is not None:
            worker.send(Cancel(Attempt(live.rid, effect.epoch), effect.reason))

    def _requeue(self, live: LiveRequest, effect: Requeue) -> None:
        where = "".join(f" on {worker_id_of(each)}" for each in effect.blamed)
        logger.info("request %s: epoch %d after %s%s", live.rid, effect.epoch, effect.cause, where)
        self._journal.retried(live, effect.cause)
        live.begin_epoch(effect.cause, effect.prefer_incarnation)
        if effect.num_failures:
            self._placer.note_failure(live, effect.blamed)
        if effect.num_failures or live.machine.strikes.crashes.any:
            self._retries.start(live, effect.num_failures)
        else:
            self.place_again(live)

    def _move(self, live: LiveRequest, effect: Move) -> list[Effect]:
        """Not by way of the line: the worker has it already."""
        self._journal.retried(live, "moved")
        live.begin_epoch("moved", effect.source)
        return self._placer.assign_to(live, effect.source)

    def _deliver(self, live: LiveRequest, effect: Deliver) -> None:
        live.generation.put(Delta(effect.token_ids, effect.logprobs))

    def _write_finish(self, live: LiveRequest, effect: WriteFinish) -> list[Effect]:
        """Step 9: outcome and usage are written once, before the client's last chunk if Redis
        answers in time."""
        self._line.leave(live.rid)
        self._journal.finishing(live, effect)
        outcome = Outcome(
            state=_STATES[effect.outcome],
            code=effect.code,
            num_output_tokens=effect.num_tokens,
            num_cached_tokens=live.receipt.cached_tokens,
            num_attempts=max(len(live.receipt.attempts), 1),
            owed=self._line.settle(live, effect.num_tokens),
            ttft_s=live.receipt.ttft_ns / 1e9 or -1.0,
        )
        is_last = self._records.leave(live.request, outcome, partial(self._finished, live.rid))
        return [] if is_last else live.machine.finish_answered()

    def _end(self, live: LiveRequest, effect: End) -> None:
        self._line.leave(live.rid)
        del self._live[live.rid]
        self._returns.note_end(idle=not self._live)
        if effect.failure is not None:
            logger.warning("request %s failed: %s", live.rid, effect.failure.code)
            live.generation.fail(error_of(effect.failure, live.request.grammar_param))
        else:
            if effect.last is not None:
                last = effect.last
                live.generation.put(Delta(last.token_ids, last.logprobs, effect.finish_reason))
            live.generation.end()
        live.ended.set()
        self._journal.ended(live, effect)

    def _end_broken(self, live: LiveRequest) -> None:
        """By its state machine, or without it."""
        machine, failure = live.machine, Failure("internal_error", "internal error")
        try:
            ending = machine.abandon(failure) if machine.active else machine.finish_answered()
            self.execute(live, ending)
        except Exception:
            logger.exception("request %s ends without a CANCEL", live.rid)
            if live.rid in self._live:
                num_tokens = live.generation.num_yielded_tokens
                outcome = Outcome(RequestState.FAILED, failure.code, num_tokens, 0)
                self._records.leave(live.request, outcome, lambda: None)
                self._end(live, End("failed", failure=failure))

    # Records in Redis

    @property
    def store_refuses_writes(self) -> bool:
        """Redis did, at the last ADMIT."""
        return self._records.refuses_writes

    @property
    def choices_to_come(self) -> bool:
        """A request was accepted, and some of its choices were not submitted yet."""
        return self._records.choices_to_come

    async def close_record(self, rid: str) -> None:
        """No other choice of this HTTP request comes. Returns once its end is recorded, or late."""
        await self._records.close(rid)

    def progress(self) -> dict[str, int]:
        """Output tokens so far, by HTTP request."""
        return self._records.progress(
            {live.rid: len(live.machine.token_ids) for live in self.all()}
        )

    def admit_all_again(self) -> None:
        """Redis lost its data: write what lives once more."""
        self._records.admit_again()

    def _admission(self, live: LiveRequest, answer: Admission | KeyTaken | None) -> None:
        with self.isolated(live):
            if answer is Admission.ADMITTED:
                live.note_admitted()
                self._journal.admitted(live)
                self.execute(live, live.machine.admitted())
            else:
                failure = refusal(answer, self._returns.per_end_s())
                self.execute(live, live.machine.refused(failure, maybe_recorded=answer is None))

    def _finished(self, rid: str) -> None:
        """By id: a FINISH that is repeated while Redis is away holds no prompt."""
        if (live := self._live.get(rid)) is not None:
            self.execute(live, live.machine.finish_answered())
