"""What comes from workers over their links, turned into events of the requests it is about."""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from services.gateway.owner.convictions import Convictions
from services.gateway.owner.links.worker_link import WorkerLink
from services.gateway.owner.live_request import LiveRequest
from services.gateway.owner.moves import Moves
from services.gateway.owner.placement.placer import Placer
from services.gateway.owner.records.journal import Journal
from services.gateway.owner.records.observer import Observer
from services.gateway.owner.requests import Requests
from services.gateway.owner.scored_prompts import ScoredPrompts
from shared.clock import Clock
from shared.protocol import (
    Attempt,
    Cancel,
    Fail,
    Handback,
    Message,
    Pong,
    Pull,
    Refuse,
    Scored,
    Spans,
    Start,
    TokenRun,
    Tokens,
)
from shared.telemetry import attributes as names

LEAVING = ("draining", "killed", "engine_died")
"""reasons of a HANDBACK after which the worker goes"""
logger = logging.getLogger(__name__)


class Frames:
    """The links' user: one function per kind of frame. One about no live request changes
    nothing."""

    def __init__(
        self,
        requests: Requests,
        placer: Placer,
        journal: Journal,
        observer: Observer,
        clock: Clock,
        vocab_size: int,
    ) -> None:
        self._requests = requests
        self._placer = placer
        self._journal = journal
        self._observer = observer
        self._clock = clock
        self._vocab_size = vocab_size
        self._moves = Moves(requests, placer, clock)
        self._convictions = Convictions(requests)
        self._scored = ScoredPrompts(requests, vocab_size, clock, self._token_run)
        self._receivers: Mapping[type, Callable[[WorkerLink, Any], None]] = {
            Start: self._start,
            Tokens: self._tokens,
            Scored: self._scored.receive,
            Refuse: self._refuse,
            Fail: self._fail,
            Handback: self._handback,
            Spans: self._spans,
            Pull: self._pull,
            Pong: self._pong,
        }

    def receive(self, worker: WorkerLink, message: Message) -> None:
        """One frame; kinds that only gateways send are ignored."""
        receiver = self._receivers.get(type(message))
        if receiver is not None:
            receiver(worker, message)
        if worker.gives_away:
            self._moves.start(worker)

    def worker_up(self, worker: WorkerLink) -> None:
        for live in self._requests.all():
            live.machine.excuse(worker.incarnation)
        self._requests.choose_missing_decodes()
        self._requests.place_waiting()

    def worker_lost(self, worker: WorkerLink) -> None:
        """Its requests start again, the shortest first: they wait least for it."""
        self._requests.for_each(
            lambda live: live.machine.lose_link(worker.incarnation, excused=worker.drains),
            by=lambda live: live.num_tokens,
        )

    def live_attempts(self, incarnation: str) -> tuple[Attempt, ...]:
        held = (live for live in self._requests.all() if live.machine.holds(incarnation))
        return tuple(live.work.attempt for live in held)

    def may_change_pool(self) -> bool:
        return not len(self._requests)

    def num_backlogged(self, worker: WorkerLink) -> int:
        return self._requests.num_backlogged(worker)

    def _start(self, worker: WorkerLink, message: Start) -> None:
        worker.settle(message.attempt.rid)
        worker.note_load(message.load)
        live = self._requests.get(message.attempt.rid)
        if live is not None:
            started = live.machine.started
            effects = live.machine.start(message.attempt.epoch, worker.incarnation)
            if live.machine.started and not started:
                live.note_start(self._clock.monotonic_s(), message.num_cached_tokens)
                self._journal.started(live, message.load.step_costs, worker.ranks)
            self._requests.execute(live, effects)
        self._requests.place_popped()

    def _tokens(self, worker: WorkerLink, message: Tokens) -> None:
        """Step 8: a run of tokens goes from here to its client in one call: RequestMachine.tokens,
        Sequencer.push, Requests.execute, Generation.put, StreamResponse, AnswerText.push,
        Detokenizer.push, ChunkWriter."""
        worker.note_load(message.load)
        now_s = self._clock.monotonic_s()
        worst_gap_s = 0.0
        for run in message.runs:
            live = self._requests.get(run.rid)
            if live is None:
                continue
            ids = run.token_ids
            if ids and not (min(ids) >= 0 and max(ids) < self._vocab_size):
                self._refuse_run(worker, live, run)
            elif not self._scored.holds_back(worker, live, run):
                gap_s = self._token_run(worker, live, run, now_s)
                if gap_s > worst_gap_s:  # noqa: PLR1730 -- no call, once per token
                    worst_gap_s = gap_s
        if worst_gap_s:
            worker.gaps.note(now_s, worst_gap_s)

    def _token_run(
        self, worker: WorkerLink, live: LiveRequest, run: TokenRun, now_s: float
    ) -> float:
        """How long after the request's token before; 0 if that tells nothing."""
        machine, gap_s = live.machine, 0.0
        num_before = len(machine.token_ids)
        decode_spoke = machine.decode_spoke
        effects = machine.tokens(worker.incarnation, run)
        if machine.decode_spoke and not decode_spoke:
            self._placer.note_success(
                (worker.incarnation,), (machine.prefill_incarnation or "", worker.incarnation)
            )
        num_new = len(machine.token_ids) - num_before
        if num_new > 0:
            timing = live.timing
            if num_before:
                gap_s = now_s - timing.last_token_s
                self._observer.token_gaps(gap_s, num_new)
                if gap_s > timing.worst_gap_s:  # noqa: PLR1730 -- no call, once per token
                    timing.worst_gap_s = gap_s
            else:
                self._observer.token_gaps(0.0, num_new - 1)
            if num_before == live.num_earlier_tokens:
                self._note_first_token(worker, live)
            timing.note_tokens(now_s)
        self._requests.execute(live, effects)
        return gap_s if decode_spoke else 0.0  # before, it waited for others too

    def _refuse_run(self, worker: WorkerLink, live: LiveRequest, run: TokenRun) -> None:
        """No token of the model: the attempt is lost there, the link and its other requests are
        not."""
        logger.error("%s sends token ids outside the vocabulary", worker.worker_id)
        worker.send(Cancel(run.attempt, "token ids outside the vocabulary"))
        effects = live.machine.fail(run.epoch, worker.incarnation, "invalid_tokens")
        self._requests.execute(live, effects)

    def _refuse(self, worker: WorkerLink, message: Refuse) -> None:
        worker.settle(message.attempt.rid)
        live = self._requests.get(message.attempt.rid)
        if message.reason == "no_room" and message.text:  # it takes one that needs fewer KV blocks
            if live is not None:
                live.assignment.full |= {worker.incarnation}
        elif message.reason == "no_room":
            worker.note_full(early=live is None or live.is_early)
        elif message.reason == "draining":
            worker.note_draining()
        elif message.reason not in ("too_long", "invalid", "grammar"):
            worker.note_refusing()
        if live is not None:
            epoch, inc = message.attempt.epoch, worker.incarnation
            effects = live.machine.refuse(epoch, inc, message.reason, message.text)
            self._requests.execute(live, effects)

    def _fail(self, worker: WorkerLink, message: Fail) -> None:
        attempt, code = message.attempt, message.code
        if message.own_fault:
            self._placer.look()
            worker.note_leaving()
        live = self._requests.get(attempt.rid)
        if live is not None:
            epoch, inc, machine = attempt.epoch, worker.incarnation, live.machine
            if message.own_fault:
                effects = machine.crash(epoch, inc, alone=message.alone)
                live.note_suspicion()
            else:
                effects = machine.fail(epoch, inc, code)
            if effects:
                logger.warning(
                    "request %s: epoch %d failed on %s with %s: %s",
                    *(*attempt, worker.worker_id, code, message.message),
                )
            self._requests.execute(live, effects)
            if message.alone:
                self._convictions.note_death(live)

    def _handback(self, worker: WorkerLink, message: Handback) -> None:
        leaves = message.reason in LEAVING
        if leaves:
            worker.note_leaving()
        live = self._requests.get(message.attempt.rid)
        if live is not None:
            if leaves:
                live.machine.excuse(worker.incarnation)
            effects = live.machine.handback(
                message.attempt.epoch, worker.incarnation, message.reason
            )
            self._requests.execute(live, effects)

    def _spans(self, worker: WorkerLink, message: Spans) -> None:
        live = self._requests.get(message.attempt.rid)
        if any(span.name == names.SPAN_HELD for span in message.spans):
            worker.has_given = True
            if live is not None:
                live.machine.released(message.attempt.epoch, worker.incarnation)
        self._journal.spans(message, worker.worker_id, worker.ranks)

    def _pong(self, worker: WorkerLink, message: Pong) -> None:
        """Attempts that went on without a token to show for it are not stalled."""
        now_s = self._clock.monotonic_s()
        for rid, epoch in message.advanced:
            live = self._requests.get(rid)
            if live and live.machine.epoch == epoch and live.machine.holds(worker.incarnation):
                live.timing.note_progress(now_s)

    def _pull(self, worker: WorkerLink, message: Pull) -> None:
        took = self._requests.take_turn(message.rid)
        if not took and self._requests.get(message.rid) is None:  # else it was placed just now
            worker.send(Cancel(Attempt(message.rid, 0), "not waiting"))

    def _note_first_token(self, worker: WorkerLink, live: LiveRequest) -> None:
        """The first token of an epoch."""
        if self._journal.first_token(live):
            live.generation.cached_tokens = live.receipt.cached_tokens
            live.generation.prompt_incarnation = live.machine.prefill_incarnation
        self._placer.note_success((worker.incarnation,))
