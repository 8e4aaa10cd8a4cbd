"""The loss of Redis's data, exhaustively at small scope: one end, one bill, no slot left taken."""

from dataclasses import replace

import pytest

from tests.model.redis_loss import Rules, explore

SOUND = {
    "a gateway dies": Rules(max_false_reaps=0),
    "a gateway is taken for dead": Rules(max_deaths=0),
}

MUTANTS = {
    "told at each answer": "R1",
    "written at each FINISH": "R2",
    "FINISH knows no keys": "R2",
    "FINISH needs its record": "R3",
    "what has ended is admitted": "R3",
    "as many beats are no loss": "R4",
    "ADMIT leaves no beat": "cannot leave",
}


@pytest.mark.parametrize("rules", SOUND.values(), ids=SOUND)
def test_a_request_ends_once_and_is_billed_once_whatever_redis_forgets(rules: Rules) -> None:
    verdict = explore(rules)
    assert verdict.sound, verdict
    assert verdict.num_worlds > 1000


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_rule_of_records_taken_out_is_found(mutant: str) -> None:
    verdict = explore(Rules(max_false_reaps=0, mutants=frozenset({mutant})))
    found = verdict.violation or verdict.stuck or "nothing"
    assert MUTANTS[mutant] in found, verdict


def test_a_second_loss_amid_the_repair_of_the_first() -> None:
    """ADMIT, sent again after the first loss, comes when FINISH has gone with the second: without
    another FINISH the record is live until its gateway ends."""
    twice = Rules(max_losses=2, max_deaths=0, max_false_reaps=0)
    assert explore(twice).sound
    verdict = explore(replace(twice, mutants=frozenset({"a late ADMIT is left"})))
    assert verdict.violation is None and verdict.stuck is not None, verdict
    assert verdict.trace.count("Redis loses its data") == 2, verdict
