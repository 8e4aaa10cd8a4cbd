"""Dials, HELLO and lost links, exhaustively at small scope: no attempt is lost but by a fault."""

from dataclasses import replace

import pytest

from tests.model.link_moves import explore
from tests.model.links import Rules

SOUND = {
    "a restart, a break": Rules(),
    "two breaks": Rules(max_incarnations=1, max_breaks=2),
    "two restarts": Rules(max_incarnations=3, max_breaks=0, num_connections=2),
    "the gateway dies": Rules(max_gateway_deaths=1, num_connections=2),
    "two gateways": Rules(2, max_incarnations=1, max_gateway_deaths=1, num_connections=2),
}

MUTANTS = {
    "gateway tells whoever answers": (Rules(max_breaks=0), "L1"),
    "two dials at once": (Rules(), "L1"),
    "a late HELLO counts": (Rules(), "L1"),
    "attempts outlive a link": (Rules(), "L2"),
    "HELLO drops nothing": (Rules(), "L2"),
    "worker keeps what has no link": (Rules(max_gateway_deaths=1), "L2"),
    "HELLO is for all gateways": (Rules(2, 1, 0, num_connections=2), "cannot leave"),
}


@pytest.mark.parametrize("rules", SOUND.values(), ids=SOUND)
def test_an_attempt_is_lost_only_with_its_worker_or_its_link(rules: Rules) -> None:
    verdict = explore(rules)
    assert verdict.sound, verdict
    assert verdict.num_worlds > 1000


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_rule_of_links_taken_out_is_found(mutant: str) -> None:
    rules, expected = MUTANTS[mutant]
    verdict = explore(replace(rules, mutants=frozenset({mutant})))
    found = verdict.violation or verdict.stuck or "nothing"
    assert expected in found, verdict


def test_an_entry_of_a_dead_incarnation_costs_the_next_one_its_attempts() -> None:
    """Where neither end asks for the other's name: the gateway's HELLO lists no attempt, because
    it lists those of the dead one."""
    unnamed = frozenset({"gateway tells whoever answers", "worker takes any HELLO"})
    verdict = explore(Rules(max_breaks=0, mutants=unnamed))
    assert verdict.violation is not None and "L1" in verdict.violation, verdict
    assert verdict.trace[-1] == "g0 hears CLOSED", verdict


def test_the_gateway_alone_keeps_its_hello_from_strangers() -> None:
    """The worker's look at whom a HELLO is for comes second: nothing depends on it alone."""
    verdict = explore(Rules(mutants=frozenset({"worker takes any HELLO"})))
    assert verdict.sound, verdict
