"""Engines that die by themselves under a request: what is counted, and what follows.

Guards: a request that kills one worker after the other, and one that is convicted of what others
did.
"""

from services.gateway.owner.machine.effects import Effect, Requeue, WriteFinish
from services.gateway.owner.machine.request_machine import RequestMachine
from services.gateway.owner.machine.strikes import FORGIVEN_AFTER
from tests.unit.gateway.owner.machine.test_request_machine import (
    D,
    P,
    failure_of,
    owner,
    run,
    running,
)


def crashed(machine: RequestMachine, *, alone: bool = False) -> list[Effect]:
    """What follows when the engine dies that computes its next attempt."""
    inc = f"p.{machine.epoch}"
    machine.assign(inc, "prefill")
    return machine.crash(machine.epoch, inc, alone=alone)


def test_engines_that_die_under_it_alone_convict_it_and_four_at_most_do() -> None:
    machine = owner(max_attempts=1)
    crashes = machine.strikes.crashes
    assert crashed(machine) == [Requeue(1, None, ("p.0",), "engine_died", 1)]
    assert not crashes.suspected
    assert crashed(machine) == [Requeue(2, None, ("p.1",), "engine_died", 2)]
    assert crashes.suspected
    assert crashed(machine, alone=True) == [Requeue(3, None, ("p.2",), "engine_died", 3)]
    assert crashed(machine, alone=True) == [WriteFinish("failed", "request_crashed_worker", 0)]
    assert failure_of(machine.finish_answered()).code == "request_crashed_worker"


def test_a_death_counts_also_when_its_attempt_has_failed_of_it_already() -> None:
    """Decode misses its source, and says so, before prefill says why."""
    machine = running()
    machine.fail(0, D, "source_lost")
    assert len(machine.strikes) == 1
    assert machine.crash(0, P, alone=False) == []
    assert machine.strikes.crashes.any and len(machine.strikes) == 0
    assert machine.crash(0, P, alone=False) == []
    assert not machine.strikes.crashes.suspected, "it is the same death"


def test_whoever_gets_on_alone_is_no_suspect_any_more() -> None:
    machine = owner(max_tokens=99)
    crashed(machine)
    crashed(machine)
    machine.assign(D, "local")
    machine.tokens(D, run(0, *range(10, 10 + FORGIVEN_AFTER), epoch=2))
    assert not machine.strikes.crashes.suspected


def test_a_death_alone_is_not_forgotten() -> None:
    machine = owner(max_tokens=99)
    crashed(machine)
    crashed(machine)
    crashed(machine, alone=True)
    machine.assign(D, "local")
    machine.tokens(D, run(0, *range(10, 10 + FORGIVEN_AFTER), epoch=3))
    machine.lose_link(D)
    assert machine.strikes.crashes.suspected
    assert crashed(machine, alone=True) == [
        WriteFinish("failed", "request_crashed_worker", FORGIVEN_AFTER)
    ]
