"""The request's state machine against a network that loses, repeats and reorders everything.

Guards: duplicated or missing tokens, answers that mix attempts, two bills, two ends, requests
that hang. The same run, of the same size, must find each rule's absence: that is the proof that
it looks hard enough.
"""

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from services.gateway.owner.machine.effects import Effect, SendReceive
from services.gateway.owner.machine.request_machine import RequestMachine
from services.gateway.owner.machine.sequencer import Sequencer
from services.gateway.owner.machine.states import State
from services.gateway.owner.machine.strikes import Strikes
from shared.protocol import TokenRun
from tests.unit.gateway.owner.machine.deaths import FORGIVEN_AFTER
from tests.unit.gateway.owner.machine.request_world import MAX_STRIKES, World, sampling

EXAMPLES = 2400
"""the rarest mutant is missed by one search of 600 in eight, by one of these in four thousand"""
STEPS = 30
SEARCH = settings(
    max_examples=EXAMPLES,
    stateful_step_count=STEPS,
    derandomize=True,
    database=None,
    phases=(Phase.generate,),
    suppress_health_check=list(HealthCheck),
    print_blob=False,
)
FEW = st.integers(0, 11)
GIVE_UP = ["fail", "crash", "refuse", "handback"]


class NoEpochCheck(RequestMachine):
    def _is_current(self, epoch: int, incarnation: str) -> bool:
        return super()._is_current(self.epoch, incarnation)


class TakesAnyIndex(Sequencer):
    def push(self, run: TokenRun) -> list[TokenRun]:
        self.token_ids += run.token_ids
        return [run]

    def contradicts(self, run: TokenRun) -> bool:
        return False


class KeepsNothing(Sequencer):
    def _keep(self, run: TokenRun) -> None:
        pass


class NoIndexCheck(RequestMachine):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._sequencer = TakesAnyIndex()


class NoReorderBuffer(RequestMachine):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._sequencer = KeepsNothing()


class TwoDecodesInOneEpoch(RequestMachine):
    def _may_choose(self) -> bool:
        return self.mode == "prefill" and not self._one_token_left


class FinishesTwice(RequestMachine):
    @property
    def active(self) -> bool:
        return not self.terminal


class DeliversBeforeAdmit(RequestMachine):
    def _may_deliver(self) -> bool:
        return True


class RetriesForEver(RequestMachine):
    def assign(self, *arguments: Any) -> list[Effect]:
        self.strikes = Strikes(MAX_STRIKES)
        return super().assign(*arguments)


class StrikesAtAssignment(RequestMachine):
    def assign(self, *arguments: Any) -> list[Effect]:
        effects = super().assign(*arguments)
        if effects:
            self.strikes.note_fault(len(self.token_ids))
        return effects


class EveryReportIsAStrike(Strikes):
    def note_death(self, incarnation: str, num_tokens: int) -> None:
        self.note_fault(num_tokens)


class OneDeathTwoStrikes(RequestMachine):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.strikes = EveryReportIsAStrike(MAX_STRIKES, FORGIVEN_AFTER)


class StrikesNeverFallAway(RequestMachine):
    def __init__(self, sampling: Any, max_strikes: int, _: int) -> None:
        super().__init__(sampling, max_strikes, forgiven_after=10**9)


class StrikesAreNotWithdrawn(RequestMachine):
    def excuse(self, incarnation: str) -> None:
        pass


class LeavingIsAStrike(RequestMachine):
    def lose_link(self, incarnation: str, *, excused: bool = False) -> list[Effect]:
        return super().lose_link(incarnation)


class RetriesInTheSameEpoch(RequestMachine):
    def _queue_again(self, *arguments: Any) -> list[Effect]:
        epoch = self.epoch
        effects = super()._queue_again(*arguments)
        self.epoch = epoch
        return effects


class PullsFromItself(RequestMachine):
    def choose_decode(self, epoch: int, incarnation: str) -> list[Effect]:
        if epoch != self.epoch or not self.wants_decode:
            return []
        self.decode_incarnation = incarnation
        return [SendReceive(epoch, self.prefill_incarnation or "", incarnation)]


class ConvictsOfSharedDeaths(RequestMachine):
    def crash(self, epoch: int, incarnation: str, *, alone: bool) -> list[Effect]:
        del alone
        return super().crash(epoch, incarnation, alone=True)


class ConvictsNobody(RequestMachine):
    def crash(self, epoch: int, incarnation: str, *, alone: bool) -> list[Effect]:
        del alone
        return super().crash(epoch, incarnation, alone=False)


class MovesInTheSameEpoch(RequestMachine):
    def move(self) -> list[Effect]:
        epoch, effects = self.epoch, super().move()
        self.epoch = epoch
        return effects


class EndsWithoutRecord(RequestMachine):
    def _finish(self, *arguments: Any) -> list[Effect]:
        super()._finish(*arguments)
        self._finish_asked = True
        return self.finish_answered()


class CountsHeldTokens(RequestMachine):
    def _num_delivered(self) -> int:
        return len(self.token_ids) + 1


class BadDay(RuleBasedStateMachine):
    """Drives one request of one kind of owner."""

    kind: type[RequestMachine] = RequestMachine

    def __init__(self) -> None:
        super().__init__()
        self.world = World(self.kind(sampling(), MAX_STRIKES, FORGIVEN_AFTER))

    @rule(at=FEW)
    def place(self, at: int) -> None:
        incs = self.world.incs
        self.world.place(incs[1 if at == 11 else 3 if at == 10 else 0])

    @precondition(lambda self: self.world.net)
    @rule(at=FEW)
    def deliver(self, at: int) -> None:
        self.world.deliver(at % len(self.world.net))

    @precondition(lambda self: self.world.net)
    @rule()
    def deliver_in_order(self) -> None:
        self.world.deliver(0)

    @precondition(lambda self: self.world.net)
    @rule(at=FEW)
    def deliver_and_keep(self, at: int) -> None:
        self.world.deliver(at % len(self.world.net), again=True)

    @precondition(lambda self: self.world.net)
    @rule(at=FEW, do=FEW)
    def drop(self, at: int, do: int) -> None:
        if do < 4:
            self.world.drop(at % len(self.world.net))

    @rule(do=FEW)
    def move(self, do: int) -> None:
        if do < 6:
            self.world.move()
        elif do < 8:
            self.world.release()

    @rule(at=st.integers(2, 3))
    def move_and_choose_decode(self, at: int) -> None:
        """What a drain does, as soon as it may."""
        self.world.move()
        while self.world.net:
            self.world.deliver(0)
        self.world.choose_decode(self.world.incs[at])

    @rule(at=st.integers(2, 3))
    def choose_decode(self, at: int) -> None:
        self.world.choose_decode(self.world.incs[at])

    @rule(at=st.integers(0, 3), do=FEW)
    def restart(self, at: int, do: int) -> None:
        if do < 4:
            self.world.restart(at)

    @rule(kind=st.sampled_from(GIVE_UP), at=st.integers(0, 3), do=FEW)
    def give_up(self, kind: str, at: int, do: int) -> None:
        if do < 4:
            self.world.say(kind, self.world.incs[at])

    @rule(do=FEW)
    def stall(self, do: int) -> None:
        if do < 4:
            self.world.stall()

    @rule(do=FEW)
    def lose_source(self, do: int) -> None:
        if do < 6:
            self.world.lose_source()

    @rule(at=st.integers(0, 3), do=FEW)
    def flap_or_leave(self, at: int, do: int) -> None:
        if do < 2:
            self.world.flap(at)
        elif do < 4:
            self.world.leave(at)

    @rule(accepted=FEW)
    def answer_admit(self, accepted: int) -> None:
        self.world.answer_admit(accepted > 0, maybe_recorded=True)

    @rule(times=st.integers(2, 5), at=FEW)
    def crash_loop(self, times: int, at: int) -> None:
        if at < 2:
            for _ in range(times):
                self.world.place(self.world.incs[at])
                self.world.restart(at)

    @rule(times=st.integers(2, 5), at=FEW)
    def engines_die(self, times: int, at: int) -> None:
        if at < 2:
            for _ in range(times):
                self.world.place(self.world.incs[at])
                self.world.say("crash", self.world.incs[at])
                self.world.deliver(len(self.world.net) - 1)
                self.world.restart(at)

    @rule(in_order=st.booleans())
    def turn_network(self, in_order: bool) -> None:
        self.world.in_order = in_order

    @rule()
    def answer_finish(self) -> None:
        self.world.answer_finish()

    @rule(do=st.integers(0, 15))
    def interrupt(self, do: int) -> None:
        names = ["stop", "cancel", "expire"]
        if do < len(names):
            getattr(self.world, names[do])()

    @rule(name=st.sampled_from(["stop", "cancel", "expire"]))
    def interrupt_the_finish(self, name: str) -> None:
        if self.world.machine.state is State.FINISHING:
            getattr(self.world, name)()

    def teardown(self) -> None:
        self.world.settle()


def test_every_request_ends_once_with_one_consistent_answer() -> None:
    run_state_machine_as_test(BadDay, settings=SEARCH)


def test_a_death_that_is_heard_of_again_is_forgiven_later() -> None:
    world = World(RequestMachine(sampling(), MAX_STRIKES, FORGIVEN_AFTER))
    for at in (2, 3):
        world.place("p0.0")
        while world.net:
            world.deliver(0)
        world.choose_decode(world.incs[at])
        if at == 2:
            world.lose_source()
    world.restart(0)
    assert len(world.machine.strikes) == 1
    world.settle()
    assert world.end is not None
    assert world.end.outcome == "done"


@pytest.mark.parametrize(
    "mutant",
    [
        NoEpochCheck,
        NoIndexCheck,
        NoReorderBuffer,
        TwoDecodesInOneEpoch,
        FinishesTwice,
        DeliversBeforeAdmit,
        RetriesForEver,
        StrikesAtAssignment,
        OneDeathTwoStrikes,
        StrikesNeverFallAway,
        StrikesAreNotWithdrawn,
        LeavingIsAStrike,
        RetriesInTheSameEpoch,
        MovesInTheSameEpoch,
        PullsFromItself,
        ConvictsOfSharedDeaths,
        ConvictsNobody,
        EndsWithoutRecord,
        CountsHeldTokens,
    ],
)
def test_the_search_finds_a_missing_rule(mutant: type[RequestMachine]) -> None:
    day = type("BadDay", (BadDay,), {"kind": mutant})
    with pytest.raises(AssertionError):
        run_state_machine_as_test(day, settings=SEARCH)
