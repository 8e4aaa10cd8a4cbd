"""Single rules of a request's state machine, one story each."""

import pytest

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
from services.gateway.owner.machine.request_machine import MAX_RETURNS, RequestMachine
from services.gateway.owner.machine.states import State
from services.gateway.owner.machine.strikes import Strikes
from services.gateway.owner.machine.time_limits import time_is_up
from shared.protocol import FinishReason, Sampling, TokenRun

P, D, E = "p0.aa", "d0.bb", "d1.cc"


def owner(max_tokens: int = 4, max_attempts: int = 4) -> RequestMachine:
    machine = RequestMachine(Sampling(max_tokens=max_tokens, eos_token_ids=(2,)), max_attempts)
    machine.admitted()
    return machine


def running(max_tokens: int = 4) -> RequestMachine:
    """Assigned to P, started, decoded by D."""
    machine = owner(max_tokens)
    machine.assign(P, "prefill")
    machine.start(0, P)
    machine.choose_decode(0, D)
    return machine


def run(index: int, *tokens: int, epoch: int = 0, reason: FinishReason | None = None) -> TokenRun:
    return TokenRun("r", epoch, index, tokens, (), reason)


def failure_of(effects: list[Effect]) -> Failure:
    end = effects[-1]
    assert isinstance(end, End) and end.failure is not None
    return end.failure


def test_the_fault_free_life() -> None:
    machine = owner()
    assert machine.assign(P, "prefill") == [SendAssign(0, P, "prefill", "")]
    assert machine.start(0, P) == [ChooseDecode(0)]
    assert machine.choose_decode(0, D) == [SendReceive(0, P, D)]
    assert machine.tokens(P, run(0, 10)) == [Deliver(0, (10,), ())]
    assert machine.tokens(D, run(0, 10)) == []
    assert machine.tokens(D, run(1, 11, 12)) == [Deliver(1, (11, 12), ())]
    last = [Deliver(3, (13,), ()), WriteFinish("done", "length", 4)]
    assert machine.tokens(D, run(3, 13, reason="length")) == last
    assert machine.finish_answered() == [End("done", Deliver(4, (), ()), "length")]
    assert machine.state is State.DONE
    assert machine.finish_answered() == []


def test_no_token_before_admit_and_all_of_them_after() -> None:
    machine = RequestMachine(Sampling(max_tokens=9), 4)
    machine.assign(D, "local", "agg")
    assert machine.tokens(D, run(0, 10)) == []
    assert machine.tokens(D, run(1, 11)) == []
    assert machine.admitted() == [Deliver(0, (10,), ()), Deliver(1, (11,), ())]


def test_a_refused_admission_cancels_and_delivers_nothing() -> None:
    machine = RequestMachine(Sampling(max_tokens=2), 4)
    machine.assign(D, "local", "agg")
    machine.tokens(D, run(0, 10, 11, reason="length"))
    effects = machine.refused(Failure("over_quota", "", 429, 1.0), maybe_recorded=False)
    assert failure_of(effects).code == "over_quota"
    assert not any(isinstance(effect, Deliver | WriteFinish) for effect in effects)


def test_an_admission_in_doubt_is_closed_in_the_record() -> None:
    machine = RequestMachine(Sampling(max_tokens=2), 4)
    machine.assign(P, "prefill")
    effects = machine.refused(Failure("state_unavailable", "", 503, 1.0), maybe_recorded=True)
    assert effects == [
        SendCancel(0, P, "refused"),
        WriteFinish("failed", "state_unavailable", 0),
    ]
    assert failure_of(machine.finish_answered()).status == 503


def test_decode_overtakes_prefill_and_nothing_is_lost() -> None:
    machine = running()
    assert machine.tokens(D, run(1, 11)) == []
    assert machine.tokens(D, run(0, 10)) == [Deliver(0, (10,), ()), Deliver(1, (11,), ())]
    assert machine.tokens(P, run(0, 10)) == []


def test_a_lost_decode_worker_is_resumed_after_the_delivered_tokens() -> None:
    machine = running()
    machine.tokens(P, run(0, 10))
    machine.tokens(D, run(1, 11))
    assert machine.lose_link(D) == [Requeue(1, P, (D,), "link_lost", 1)]
    assert machine.token_ids == [10, 11]
    machine.assign(P, "prefill")
    assert machine.tokens(D, run(2, 99)) == []
    assert machine.tokens(P, run(2, 12, epoch=1)) == [Deliver(2, (12,), ())]


def test_a_lost_prefill_worker_does_not_matter_once_decode_spoke() -> None:
    machine = running()
    machine.tokens(D, run(0, 10))
    assert machine.lose_link(P) == []
    assert not machine.holds(P)


def test_a_lost_prefill_worker_before_that_is_a_retry_elsewhere() -> None:
    machine = running()
    assert machine.lose_link(P) == [
        SendCancel(0, D, "link_lost"),
        Requeue(1, None, (P,), "link_lost", 1),
    ]


def test_strikes_end_the_request() -> None:
    machine = owner(max_attempts=2)
    for epoch in range(2):
        machine.assign(P, "prefill")
        effects = machine.fail(epoch, P, "pull_failed")
    assert effects == [WriteFinish("failed", "attempts_exhausted", 0)]
    assert failure_of(machine.finish_answered()).code == "attempts_exhausted"


def test_clean_returns_are_no_strikes_but_bounded() -> None:
    machine = owner(max_attempts=1)
    epoch = 0
    while machine.waits:
        machine.assign(P, "prefill")
        event = machine.refuse if epoch % 2 else machine.handback
        event(epoch, P, "no_room")
        epoch += 1
    assert epoch == MAX_RETURNS
    assert len(machine.strikes) == 0


def test_returns_that_bring_tokens_never_end_a_request() -> None:
    """A small pool hands a long answer back again and again; each time it has grown."""
    num_tokens = MAX_RETURNS + 2
    machine = owner(max_tokens=num_tokens)
    for epoch in range(num_tokens - 1):
        machine.assign(P, "prefill")
        machine.start(epoch, P)
        machine.choose_decode(epoch, D)
        machine.tokens(P, run(epoch, 10, epoch=epoch))
        machine.handback(epoch, D, "kv_pressure")
    machine.assign(P, "prefill")
    effects = machine.tokens(P, run(num_tokens - 1, 10, epoch=num_tokens - 1, reason="length"))
    assert effects[-1] == WriteFinish("done", "length", num_tokens)


def test_a_stall_blames_the_silent_worker() -> None:
    machine = running()
    assert machine.stall(0)[-1] == Requeue(1, None, (P,), "stalled", 1)
    machine = running()
    machine.tokens(P, run(0, 10))
    assert machine.stall(0) == [
        SendCancel(0, P, "stalled"),
        SendCancel(0, D, "stalled"),
        Requeue(1, P, (D,), "stalled", 1),
    ]


def test_a_stall_of_an_engine_moves_what_waits_for_it() -> None:
    """Of the source until decode has its KV, of the reader once prefill has spoken."""
    computing = running()
    assert computing.stall(0, at=D) == []
    assert computing.stall(0, at="other") == []
    assert computing.stall(1, at=P) == []
    assert computing.stall(0, at=P)[-1] == Requeue(1, None, (P,), "stalled", 1)
    for silent, prefer in ((P, None), (D, P)):
        pulled = running()
        pulled.tokens(P, run(0, 10))
        assert pulled.stall(0, at=silent)[-1] == Requeue(1, prefer, (silent,), "stalled", 1)
    taken = running()
    taken.tokens(P, run(0, 10))
    taken.released(0, P)
    assert taken.stall(0, at=P) == []
    decoded = running()
    decoded.tokens(P, run(0, 10))
    decoded.tokens(D, run(1, 11))
    assert decoded.stall(0, at=P) == []
    assert decoded.stall(0, at=D)[-1] == Requeue(1, P, (D,), "stalled", 1)


def test_a_repeat_that_differs_is_another_lineage() -> None:
    machine = running()
    machine.tokens(P, run(0, 10))
    assert machine.tokens(D, run(0, 77, 78))[-1] == Requeue(1, P, (D,), "inconsistent", 1)
    assert machine.token_ids == [10]


@pytest.mark.parametrize(("last", "reason"), [((12, 13, 14), "length"), ((2, 13), "stop")])
def test_the_owner_sees_the_end_itself(last: tuple[int, ...], reason: FinishReason) -> None:
    """A worker that runs past the end is cut and cancelled."""
    machine = running()
    machine.tokens(D, run(0, 10, 11))
    cancel, *shown, finish = machine.tokens(D, run(2, *last))
    num_tokens = 4 if reason == "length" else 3
    assert cancel == SendCancel(0, D, "ended")
    assert finish == WriteFinish("done", reason, num_tokens)
    delivered = Deliver(2, last[: num_tokens - 2], ())
    if reason == "length":  # text does not wait for Redis; a token that stops it is none
        assert shown == [delivered]
        delivered = Deliver(4, (), ())
    else:
        assert shown == []
    assert machine.finish_answered() == [End("done", delivered, reason)]


def test_nobody_is_asked_to_decode_the_last_token() -> None:
    machine = owner(max_tokens=1)
    machine.assign(P, "prefill")
    assert machine.start(0, P) == []
    assert not machine.wants_decode
    assert machine.tokens(P, run(0, 10, reason="length"))[-1] == WriteFinish("done", "length", 1)


def test_a_prompt_that_ends_at_token_1_frees_the_decode_worker() -> None:
    machine = running()
    effects = machine.tokens(P, run(0, 2, reason="stop"))
    assert effects == [SendCancel(0, D, "ended"), WriteFinish("done", "stop", 1)]


def test_stop_string_cancel_and_deadline() -> None:
    machine = running()
    machine.tokens(D, run(0, 10, 11))
    assert machine.stop("stop", 1) == [SendCancel(0, D, "stop"), WriteFinish("done", "stop", 1)]
    assert machine.finish_answered() == [End("done", finish_reason="stop")]
    machine = running()
    effects = machine.cancel(0)
    assert effects[-1] == WriteFinish("cancelled", "", 0)
    assert machine.finish_answered() == [End("cancelled")]
    machine = owner()
    machine.abandon(time_is_up(1.0))
    assert failure_of(machine.finish_answered()).status == 504


def test_a_prompt_too_long_for_the_pool_is_not_retried() -> None:
    machine = owner()
    machine.assign(P, "prefill")
    machine.refuse(0, P, "too_long")
    assert failure_of(machine.finish_answered()).status == 400


@pytest.mark.parametrize("code", ["source_lost", "kv_transfer"])
def test_a_broken_hand_over_blames_both_ends_although_decode_reports_it(code: str) -> None:
    effects = running().fail(0, D, code)
    assert effects == [SendCancel(0, P, code), Requeue(1, None, (P, D), code, 1)]


def test_an_attempt_is_no_strike_its_end_is() -> None:
    machine = running()
    assert len(machine.strikes) == 0
    machine.lose_link(P)
    assert len(machine.strikes) == 1


def test_a_worker_that_is_known_to_leave_costs_no_strike() -> None:
    machine = owner(max_attempts=1)
    machine.assign(P, "prefill")
    assert machine.lose_link(P, excused=True) == [Requeue(1, None, (P,), "link_lost", 0)]
    assert len(machine.strikes) == 0


def test_prefill_that_was_released_is_no_loss() -> None:
    """Decode's first token may follow by a step. A reader that has nothing after all says so."""
    machine = running()
    machine.tokens(P, run(0, 10))
    machine.released(0, P)
    assert machine.lose_link(P) == machine.lose_link(P, excused=True) == []
    assert machine.handback(0, P, "draining") == []
    assert machine.tokens(D, run(0, 10, 11)) == [Deliver(1, (11,), ())]
    machine = running()
    machine.released(0, P)
    *_, requeue = machine.fail(0, D, "source_lost")
    assert isinstance(requeue, Requeue) and requeue.epoch == 1
    machine = running()
    machine.released(0, D)
    machine.released(1, P)
    *_, requeue = machine.lose_link(P, excused=True)
    assert isinstance(requeue, Requeue) and requeue.cause == "link_lost"


def test_a_request_moves_from_the_worker_that_decodes_it() -> None:
    """Not before that has all of its KV; and its older epoch says nothing any more."""
    machine = running(max_tokens=60)
    machine.tokens(P, run(0, 10))
    assert machine.move() == []
    machine.tokens(D, run(0, 10, 11))
    assert machine.move() == [Move(1, D)]
    assert machine.state is State.QUEUED
    assert machine.assign(D, "prefill") == [SendAssign(1, D, "prefill", "")]
    assert machine.tokens(D, run(2, 12)) == []
    assert machine.start(1, D) == [ChooseDecode(1)]
    assert machine.choose_decode(1, D) == [], "nobody pulls from itself"
    assert machine.choose_decode(1, E) == [SendReceive(1, D, E)]
    assert machine.tokens(D, run(2, 12, epoch=1)) == [Deliver(2, (12,), ())]
    assert machine.tokens(E, run(2, 12, 13, epoch=1)) == [Deliver(3, (13,), ())]
    assert len(machine.strikes) == machine.num_returns == 0


def test_a_link_that_comes_back_withdraws_its_strike() -> None:
    """It was a partition or a freeze; what had stalled there goes with it."""
    machine = running()
    machine.stall(0)
    machine.assign(P, "prefill")
    machine.lose_link(P)
    assert len(machine.strikes) == 1
    machine.excuse(P)
    assert len(machine.strikes) == 0


def test_the_death_that_decode_reported_first_is_one_strike() -> None:
    """The retry went to the worker that was dying."""
    machine = running()
    machine.fail(0, D, "source_lost")
    machine.assign(P, "prefill")
    assert machine.lose_link(P)[-1] == Requeue(2, None, (P,), "link_lost", 2)
    assert len(machine.strikes) == 1


def test_a_strike_is_as_late_as_the_death_that_confirms_it() -> None:
    strikes = Strikes(limit=4, forgiven_after=64)
    strikes.note_broken_pair(P, D, num_tokens=0)
    strikes.note_death(D, num_tokens=40)
    strikes.note_progress(64)
    assert len(strikes) == 1
    strikes.note_progress(104)
    assert len(strikes) == 0


def test_a_link_that_falls_again_and_again_is_no_strike_but_a_failure_each_time() -> None:
    """So that its request is not tried again at once."""
    strikes = Strikes(limit=4, forgiven_after=64)
    for number in range(1, 5):
        strikes.note_death(P, num_tokens=100 + number)
        strikes.withdraw(P)
        strikes.note_progress(100 + number)
        assert (len(strikes), strikes.num_failures) == (0, number)
    strikes.note_progress(168)
    assert strikes.num_failures == 0


def test_64_tokens_make_all_strikes_fall_away() -> None:
    """Any number of deaths is survived, if the answer grows between them."""
    machine = owner(max_tokens=1000, max_attempts=2)
    for epoch in range(8):
        worker = f"d0.{epoch}"
        machine.assign(worker, "local")
        tokens = range(100 + epoch, 100 + epoch + 64)
        machine.tokens(worker, run(64 * epoch, *tokens, epoch=epoch))
        assert machine.lose_link(worker)[-1] == Requeue(epoch + 1, None, (worker,), "link_lost", 1)
    machine.assign("d1.0", "local")
    machine.tokens("d1.0", run(64 * 8, *range(100, 163), epoch=8))
    machine.lose_link("d1.0")
    assert machine.state is State.FINISHING, "63 tokens are not enough"


def test_prefill_may_hand_back_what_decode_already_has() -> None:
    machine = running()
    machine.tokens(P, run(0, 10))
    machine.tokens(D, run(0, 10, 11))
    assert machine.handback(0, P, "draining") == []
    assert machine.state is State.RUNNING
    assert machine.handback(0, D, "draining") != []
