"""Frames from workers, turned into events of the requests they are about."""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from services.gateway.owner.live_request import LiveRequest
from services.gateway.owner.observer import Observer
from services.gateway.owner.owned_requests import OwnedRequests
from services.gateway.owner.prefill_cost import PrefillCost
from services.gateway.owner.worker_link import WorkerLink
from shared.clock import Clock
from shared.protocol import (
    Cancel,
    Fail,
    Handback,
    Message,
    Pong,
    Pull,
    Refuse,
    Spans,
    Start,
    TokenRun,
    Tokens,
)

LEAVING = ("draining", "killed")
"""reasons of a HANDBACK after which the worker goes"""
logger = logging.getLogger(__name__)


class WorkerMessages:
    """Knows what each kind of frame means; a frame about no live request changes nothing."""

    def __init__(
        self,
        requests: OwnedRequests,
        cost: PrefillCost,
        clock: Clock,
        observer: Observer,
        vocab_size: int,
    ) -> None:
        self._requests = requests
        self._cost = cost
        self._clock = clock
        self._observer = observer
        self._vocab_size = vocab_size
        self._receivers: Mapping[type, Callable[[WorkerLink, Any], None]] = {
            Start: self._start,
            Tokens: self._tokens,
            Refuse: self._refuse,
            Fail: self._fail,
            Handback: self._handback,
            Spans: self._note_spans,
            Pull: self._pull,
            Pong: self._pong,
        }

    def receive(self, worker: WorkerLink, message: Message) -> None:
        """One frame; kinds that only gateways send are ignored."""
        receiver = self._receivers.get(type(message))
        if receiver is not None:
            receiver(worker, message)
        if isinstance(message, Start):
            self._requests.place_popped()

    def _start(self, worker: WorkerLink, message: Start) -> None:
        worker.settle(message.rid)
        worker.note_load(message.load)
        live = self._requests.live.get(message.rid)
        if live is None:
            return
        started = live.machine.started
        effects = live.machine.start(message.epoch, worker.inc)
        if live.machine.started and not started:
            live.note_start(self._clock.monotonic_s(), message.num_cached_tokens)
            now_ns = live.receipt.attempts[-1].started_ns = self._clock.wall_ns()
            if not live.receipt.first_token_ns:
                live.receipt.started_ns = now_ns
        self._requests.execute(live, effects)

    def _tokens(self, worker: WorkerLink, message: Tokens) -> None:
        worker.note_load(message.load)
        now_s = self._clock.monotonic_s()
        for run in message.runs:
            live = self._requests.live.get(run.rid)
            if live is None:
                continue
            if all(0 <= token_id < self._vocab_size for token_id in run.token_ids):
                self._token_run(worker, live, run, now_s)
            else:
                self._refuse_run(worker, live, run)

    def _token_run(
        self, worker: WorkerLink, live: LiveRequest, run: TokenRun, now_s: float
    ) -> None:
        machine = live.machine
        num_before = len(machine.token_ids)
        decode_spoke = machine.decode_spoke
        effects = machine.tokens(worker.inc, run)
        if machine.decode_spoke and not decode_spoke:
            self._requests.failures.note_success((worker.inc,), (machine.p_inc or "", worker.inc))
        num_new = len(machine.token_ids) - num_before
        if num_new > 0:
            if num_before:
                self._observer.token_gaps(now_s - live.last_token_s, num_new)
            else:
                self._observer.token_gaps(0.0, num_new - 1)
            if num_before == live.num_earlier_tokens:
                self._note_first_token(worker, live, now_s)
            live.note_tokens(now_s)
        self._requests.execute(live, effects)

    def _refuse_run(self, worker: WorkerLink, live: LiveRequest, run: TokenRun) -> None:
        """No token of the model: the attempt is lost there, the link and its other requests are
        not."""
        logger.error("%s sends token ids outside the vocabulary", worker.worker_id)
        worker.send(Cancel(run.rid, run.epoch, "token ids outside the vocabulary"))
        effects = live.machine.fail(run.epoch, worker.inc, "invalid_tokens", own_fault=False)
        self._requests.execute(live, effects)

    def _refuse(self, worker: WorkerLink, message: Refuse) -> None:
        worker.settle(message.rid)
        if message.reason == "no_room":
            worker.note_full()
        elif message.reason == "draining":
            worker.note_leaving()
        elif message.reason not in ("too_long", "invalid"):
            worker.note_draining()
        live = self._requests.live.get(message.rid)
        if live is not None:
            effects = live.machine.refuse(message.epoch, worker.inc, message.reason, message.text)
            self._requests.execute(live, effects)

    def _fail(self, worker: WorkerLink, message: Fail) -> None:
        live = self._requests.live.get(message.rid)
        if live is not None:
            effects = live.machine.fail(message.epoch, worker.inc, message.code, message.own_fault)
            self._requests.execute(live, effects)

    def _handback(self, worker: WorkerLink, message: Handback) -> None:
        if message.reason in LEAVING:
            worker.note_leaving()
        live = self._requests.live.get(message.rid)
        if live is not None:
            effects = live.machine.handback(message.epoch, worker.inc, message.reason)
            self._requests.execute(live, effects)

    def _note_spans(self, worker: WorkerLink, message: Spans) -> None:
        """They may come after the end, so they go to the receipt, not to the request."""
        receipt = self._requests.receipts.get(message.rid)
        if receipt is not None:
            for span in message.spans:
                receipt.note(message.epoch, worker.worker_id, span)

    def _pong(self, worker: WorkerLink, message: Pong) -> None:
        """Attempts that went on without a token to show for it are not stalled."""
        now_s = self._clock.monotonic_s()
        for rid, epoch in message.advanced:
            live = self._requests.live.get(rid)
            if live is not None and live.machine.epoch == epoch and live.machine.holds(worker.inc):
                live.progress_s = now_s

    def _pull(self, worker: WorkerLink, message: Pull) -> None:
        if self._requests.line.note_popped(message.rid):
            self._requests.place_popped()
        elif message.rid not in self._requests.live:  # else its owner has just placed it
            worker.send(Cancel(message.rid, 0, "not waiting"))

    def _note_first_token(self, worker: WorkerLink, live: LiveRequest, now_s: float) -> None:
        """The first token of an epoch: it tells what the prompt cost."""
        receipt = live.receipt
        now_ns = receipt.attempts[-1].first_token_ns = self._clock.wall_ns()
        if not receipt.first_token_ns:
            receipt.first_token_ns = now_ns
            receipt.cached_tokens = min(live.num_cached_tokens, receipt.prompt_tokens)
            live.generation.cached_tokens = receipt.cached_tokens
            live.generation.prompt_inc = live.machine.p_inc
            self._observer.first_token(receipt)
        self._requests.failures.note_success((worker.inc,))
        if worker.inc == live.machine.p_inc and live.machine.started:
            num_computed = len(live.token_ids) - live.num_cached_tokens
            self._cost.observe(worker.inc, num_computed, now_s - live.started_s)
            worker.view.token_s = self._cost.token_s(worker.inc)
