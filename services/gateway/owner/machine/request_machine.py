"""The life of one request as its owner keeps it: events in, effects out, no I/O and no clock.

The owner is the only writer of a request's attempts. An attempt is an epoch: it names one
prefill incarnation and one decode incarnation, once (R2), so tokens that reach the client
within an epoch are of one lineage. Messages of any other epoch or incarnation change nothing.
"""

from services.gateway.owner.machine.effects import (
    CONVICTED_CODE,
    WRONG_GRAMMAR_CODE,
    ChooseDecode,
    Deliver,
    Effect,
    End,
    Failure,
    LocalReason,
    Mode,
    Move,
    Requeue,
    SendAssign,
    SendCancel,
    SendReceive,
    WriteFinish,
)
from services.gateway.owner.machine.sequencer import Sequencer, cut_run
from services.gateway.owner.machine.states import State
from services.gateway.owner.machine.strikes import FORGIVEN_AFTER, Strikes
from shared.protocol import FinishReason, Sampling, TokenRun

MAX_RETURNS = 64
"""clean refusals and hand-backs in a row without a new token: no strikes, but not endless"""
BROKEN_PAIR_CODES = ("source_lost", "kv_transfer")
"""FAILs of a decode worker whose cause may be either end of the hand-over, or what is between"""


class RequestMachine:
    """State machine of one request; each method is an event and returns effects in order."""

    def __init__(
        self, sampling: Sampling, max_strikes: int, forgiven_after: int = FORGIVEN_AFTER
    ) -> None:
        self.state = State.QUEUED
        self.epoch = 0
        self.prefill_incarnation: str | None = None
        self.decode_incarnation: str | None = None
        self.mode: Mode = "prefill"
        self.started = False
        self.decode_spoke = False
        """decode has all KV: prefill's part in this epoch is over"""
        self.kv_taken = False
        """says prefill, before decode has spoken; if nobody did, decode will say so"""
        self.num_returns = 0
        self.strikes = Strikes(max_strikes, forgiven_after)
        self._max_tokens = sampling.max_tokens
        eos = () if sampling.ignore_eos else sampling.eos_token_ids
        self._end_ids = frozenset((*sampling.stop_token_ids, *eos))
        self._sequencer = Sequencer()
        self._epoch_start = 0
        self._admitted: bool | None = None
        self._held: list[TokenRun] = []
        self._end: End | None = None
        self._finish_asked = False
        self._num_used = 0

    @property
    def token_ids(self) -> list[int]:
        """Output tokens taken so far; a retry continues after them."""
        return self._sequencer.token_ids

    @property
    def terminal(self) -> bool:
        return self.state in (State.DONE, State.FAILED, State.CANCELLED)

    @property
    def active(self) -> bool:
        """Still able to make progress: queued or running."""
        return self.state in (State.QUEUED, State.RUNNING)

    @property
    def waits(self) -> bool:
        """Wants a worker."""
        return self.state is State.QUEUED

    def holds(self, incarnation: str) -> bool:
        """Whether the current attempt needs this worker."""
        over = self.decode_spoke or self.kv_taken
        is_source = incarnation == self.prefill_incarnation and not over
        held = is_source or incarnation == self.decode_incarnation
        return held and self.state is State.RUNNING

    # Placement

    def assign(self, incarnation: str, mode: Mode, reason: LocalReason = "") -> list[Effect]:
        """The owner chose a worker for the waiting epoch."""
        if self.state is not State.QUEUED:
            return []
        self.state, self.mode, self.prefill_incarnation = State.RUNNING, mode, incarnation
        self.decode_incarnation = incarnation if mode == "local" else None
        return [SendAssign(self.epoch, incarnation, mode, reason)]

    def start(self, epoch: int, incarnation: str) -> list[Effect]:
        """The worker has scheduled the first chunk."""
        first = self._is_current(epoch, incarnation) and not self.started
        if not first or incarnation != self.prefill_incarnation:
            return []
        self.started = True
        return [ChooseDecode(epoch)] if self.wants_decode else []

    def choose_decode(self, epoch: int, incarnation: str) -> list[Effect]:
        """The owner chose where this epoch is decoded; a second choice would break R2. Nobody pulls
        from itself."""
        itself = incarnation == self.prefill_incarnation
        if epoch != self.epoch or not self.wants_decode or itself:
            return []
        assert self.prefill_incarnation is not None
        self.decode_incarnation = incarnation
        return [SendReceive(epoch, self.prefill_incarnation, incarnation)]

    def decodes_at(self, incarnation: str) -> bool:
        """That worker has all of its KV, and nobody else is needed."""
        return self.holds(incarnation) and self.decode_spoke

    def move(self) -> list[Effect]:
        """Its decode worker will go: as the prefill worker of another epoch it hands over what it
        has. No CANCEL: there that epoch takes the place of this one."""
        source = self.decode_incarnation
        if source is None or not self.decodes_at(source):
            return []
        self._begin_epoch()
        return [Move(self.epoch, source)]

    @property
    def wants_decode(self) -> bool:
        """Prefill runs and nobody was chosen to decode."""
        return self.state is State.RUNNING and self.started and self._may_choose()

    # What workers say

    def tokens(self, incarnation: str, run: TokenRun) -> list[Effect]:
        """A run of tokens; R3 decides what of it is new."""
        if not self._is_current(run.epoch, incarnation) or not self._is_plausible(incarnation, run):
            return []
        if self._sequencer.contradicts(run):
            self.strikes.note_fault(self._sequencer.next_index)
            return self._retry("inconsistent", (incarnation,), dropped_by=incarnation)
        if incarnation == self.decode_incarnation:
            self.decode_spoke = True
        new_runs = self._sequencer.push(run)
        self.strikes.note_progress(self._sequencer.next_index)
        for ready in new_runs:
            ended = self._ended(ready)
            self._held.append(ended or ready)
            if ended is not None:
                return self._complete(ended, incarnation if ready.finish_reason else None)
        return self._flush()

    def refuse(self, epoch: int, incarnation: str, reason: str, text: str = "") -> list[Effect]:
        """Nothing was kept: back to the queue without a strike."""
        if not self._is_current(epoch, incarnation):
            return []
        if reason == "too_long":
            return self._fail(Failure("prompt_too_long", "the prompt fits no worker", 400))
        if reason == "grammar":
            return self._fail(Failure(WRONG_GRAMMAR_CODE, text, 400))
        if reason == "invalid":
            text = f"the worker does not take this request: {text}"
            return self._fail(Failure("refused_by_worker", text))
        return self._take_back(f"refused_{reason}", dropped_by=incarnation)

    def handback(self, epoch: int, incarnation: str, reason: str) -> list[Effect]:
        """Given back cleanly, under pressure or while draining (R10). Prefill may give back
        what decode has a verified copy of: that changes nothing."""
        if not (self._is_current(epoch, incarnation) and self.holds(incarnation)):
            return []
        return self._take_back(f"handback_{reason}", dropped_by=None)

    def crash(self, epoch: int, incarnation: str, *, alone: bool) -> list[Effect]:
        """The engine of `incarnation` died by itself in a step of this epoch, or of an earlier."""
        if not self.active or epoch > self.epoch:
            return []
        self.strikes.note_crash(incarnation, self._sequencer.next_index, alone=alone)
        if self.strikes.crashes.convicted:
            return self._fail(Failure(CONVICTED_CODE, "workers die of it"), dropped_by=incarnation)
        here = self._is_current(epoch, incarnation)
        return self._retry("engine_died", (incarnation,), dropped_by=incarnation) if here else []

    def fail(self, epoch: int, incarnation: str, code: str) -> list[Effect]:
        """The attempt is lost at `incarnation`."""
        if not self._is_current(epoch, incarnation):
            return []
        p_inc, num_tokens = self.prefill_incarnation, self._sequencer.next_index
        if code in BROKEN_PAIR_CODES and p_inc is not None and p_inc != incarnation:
            self.strikes.note_broken_pair(p_inc, incarnation, num_tokens)
            return self._retry(code, (p_inc, incarnation), dropped_by=incarnation)
        self.strikes.note_fault(num_tokens)
        return self._retry(code, (incarnation,), dropped_by=incarnation)

    def lose_link(self, incarnation: str, *, excused: bool = False) -> list[Effect]:
        """The link to an incarnation broke; whether it died is not known. `excused`: it is known
        to be leaving, so that is no strike."""
        if not self.holds(incarnation):
            return []
        if excused:
            return self._take_back("link_lost", dropped_by=incarnation)
        self.strikes.note_death(incarnation, self._sequencer.next_index)
        return self._retry("link_lost", (incarnation,), dropped_by=incarnation)

    def excuse(self, incarnation: str) -> None:
        """It is back, after it was cut off or frozen, or says why it goes: that is no strike."""
        self.strikes.withdraw(incarnation)

    def stall(self, epoch: int, at: str = "") -> list[Effect]:
        """No progress for too long. `at`: only if it waits for that worker, or for its KV."""
        if self.state is not State.RUNNING or epoch != self.epoch:
            return []
        computing = len(self.token_ids) == self._epoch_start or self.decode_incarnation is None
        silent = self.prefill_incarnation if computing else self.decode_incarnation
        if at and not (at == silent or (self.holds(at) and not computing)):
            return []
        silent = at or silent
        assert silent is not None
        self.strikes.note_death(silent, self._sequencer.next_index)
        return self._retry("stalled", (silent,), dropped_by=None)

    def released(self, epoch: int, incarnation: str) -> None:
        """Prefill keeps nothing of it any more: that it goes is no loss."""
        current = self._is_current(epoch, incarnation)
        self.kv_taken |= current and incarnation == self.prefill_incarnation

    # What Redis says

    def admitted(self) -> list[Effect]:
        """ADMIT was accepted: the client may see what was held back for it."""
        if self._admitted is not None:
            return []
        self._admitted = True
        if self.state is State.FINISHING:
            return self._write_finish()
        return self._flush()

    def refused(self, failure: Failure, *, maybe_recorded: bool) -> list[Effect]:
        """ADMIT was refused, or its outcome is unknown; no token has reached the client."""
        if self._admitted is not None or self.terminal:
            return []
        self._admitted = False
        effects = self._cancel_workers("refused") if self.active else []
        cancelled = self._end is not None and self._end.outcome == "cancelled"
        end = self._end if cancelled and self._end else End("failed", failure=failure)
        self.state, self._end, self._num_used = State.FINISHING, end, 0
        return effects + (self._write_finish() if maybe_recorded else self._terminate())

    def finish_answered(self) -> list[Effect]:
        """FINISH is recorded, or late: then the client is told and FINISH goes on without it."""
        return self._terminate() if self._finish_asked else []

    # What the client's side says

    def stop(self, reason: FinishReason, num_tokens: int) -> list[Effect]:
        """The text side ends the answer after `num_tokens` tokens."""
        if not self.active:
            return []
        effects = self._cancel_workers("stop")
        self._held.clear()
        return effects + self._finish(End("done", finish_reason=reason), num_tokens)

    def cancel(self, num_tokens: int) -> list[Effect]:
        """Nobody reads any more."""
        if not self.active:
            return []
        return self._cancel_workers("cancelled") + self._finish(End("cancelled"), num_tokens)

    def abandon(self, failure: Failure) -> list[Effect]:
        """The owner gives up: a time limit is reached, no room will come, or it is closing."""
        return self._fail(failure) if self.active else []

    # Decisions

    def _is_current(self, epoch: int, incarnation: str) -> bool:
        live = self.state is State.RUNNING and epoch == self.epoch
        return live and incarnation in (self.prefill_incarnation, self.decode_incarnation)

    def _may_choose(self) -> bool:
        undecided = self.mode == "prefill" and self.decode_incarnation is None
        return undecided and not self._one_token_left

    @property
    def _one_token_left(self) -> bool:
        """Prefill ends the request itself."""
        return self._epoch_start + 1 >= self._max_tokens

    def _is_plausible(self, incarnation: str, run: TokenRun) -> bool:
        """Prefill hands over after one token; nobody writes before its epoch began."""
        if not run.token_ids or run.index < self._epoch_start:
            return False
        from_prefill = self.mode == "prefill" and incarnation == self.prefill_incarnation
        return not from_prefill or (run.index == self._epoch_start and len(run.token_ids) == 1)

    def _ended(self, run: TokenRun) -> TokenRun | None:
        """`run` up to the token that ends the request, if one does."""
        for offset, token in enumerate(run.token_ids, start=1):
            if token in self._end_ids:
                return cut_run(run, offset, run.finish_reason or "stop")
            if run.index + offset >= self._max_tokens:
                return cut_run(run, offset, run.finish_reason or "length")
        return run if run.finish_reason is not None else None

    def _complete(self, last: TokenRun, ended_incarnation: str | None) -> list[Effect]:
        effects = self._cancel_workers("ended", skip=ended_incarnation)
        num_tokens = last.index + len(last.token_ids)
        del self.token_ids[num_tokens:]
        end = End("done", Deliver(num_tokens, (), ()), last.finish_reason)
        return effects + self._finish(end, num_tokens)

    def _flush(self) -> list[Effect]:
        """Deliver what is held, once ADMIT was accepted."""
        if not self._may_deliver():
            return []
        held, self._held = self._held, []
        return [Deliver(run.index, run.token_ids, run.logprobs) for run in held]

    def _may_deliver(self) -> bool:
        return self._admitted is True

    def _retry(
        self, cause: str, blamed: tuple[str, ...], *, dropped_by: str | None
    ) -> list[Effect]:
        """The attempt failed; `dropped_by` needs no CANCEL."""
        effects = self._cancel_workers(cause, skip=dropped_by)
        if self.strikes.used_up:
            return effects + self._give_up(cause)
        return effects + self._queue_again(cause, blamed, self.strikes.num_failures)

    def _take_back(self, cause: str, *, dropped_by: str | None) -> list[Effect]:
        """The attempt was given back, and nobody failed (R10)."""
        effects = self._cancel_workers(cause, skip=dropped_by)
        progressed = self._sequencer.next_index > self._epoch_start
        self.num_returns = 1 if progressed else self.num_returns + 1
        if self.num_returns >= MAX_RETURNS:
            return effects + self._give_up(cause)
        blamed = () if dropped_by is None else (dropped_by,)
        return effects + self._queue_again(cause, blamed, 0)

    def _give_up(self, cause: str) -> list[Effect]:
        failure = Failure(
            "attempts_exhausted", f"no attempt succeeded; the last ended with {cause}"
        )
        return self._finish(End("failed", failure=failure), self._num_delivered())

    def _queue_again(self, cause: str, blamed: tuple[str, ...], num_failures: int) -> list[Effect]:
        prefer = self.prefill_incarnation if self.prefill_incarnation not in blamed else None
        self._begin_epoch()
        return [Requeue(self.epoch, prefer, blamed, cause, num_failures)]

    def _begin_epoch(self) -> None:
        """It continues after the tokens taken so far, and has no worker yet."""
        self.state = State.QUEUED
        self.epoch += 1
        self.prefill_incarnation = self.decode_incarnation = None
        self.started = self.decode_spoke = self.kv_taken = False
        self._epoch_start = self._sequencer.next_index
        self._sequencer.forget_ahead()

    def _fail(self, failure: Failure, *, dropped_by: str | None = None) -> list[Effect]:
        effects = self._cancel_workers(failure.code, skip=dropped_by)
        return effects + self._finish(End("failed", failure=failure), self._num_delivered())

    def _num_delivered(self) -> int:
        return len(self.token_ids) - sum(len(run.token_ids) for run in self._held)

    def _finish(self, end: End, num_tokens: int) -> list[Effect]:
        self.state = State.FINISHING
        self._end, self._num_used = end, num_tokens
        return [] if self._admitted is None else self._write_finish()

    def _write_finish(self) -> list[Effect]:
        """The end waits for Redis, and a token that stops the text: it is none. No other does."""
        assert self._end is not None
        self._finish_asked = True
        code = self._end.failure.code if self._end.failure else self._end.finish_reason or ""
        shown = self._flush() if code == "length" else []
        return [*shown, WriteFinish(self._end.outcome, code, self._num_used)]

    def _terminate(self) -> list[Effect]:
        if self.state is not State.FINISHING or self._end is None:
            return []
        self.state = State(self._end.outcome)
        if self._end.outcome != "done" or not self._held:
            return [self._end]
        *earlier, last = (Deliver(run.index, run.token_ids, run.logprobs) for run in self._held)
        return [*earlier, End("done", last, self._end.finish_reason)]

    def _cancel_workers(self, reason: str, *, skip: str | None = None) -> list[Effect]:
        """CANCEL to each worker of the current epoch that may still hold something of it."""
        if self.state is not State.RUNNING:
            return []
        p_inc = None if self.decode_spoke else self.prefill_incarnation
        incs = dict.fromkeys(
            inc for inc in (p_inc, self.decode_incarnation) if inc not in (None, skip)
        )
        return [SendCancel(self.epoch, inc, reason) for inc in incs if inc is not None]
