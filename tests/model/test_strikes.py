"""Strikes (R9, I10) and ends (I12), exhaustively at small scope: each part of a rule is needed."""

from dataclasses import replace

import pytest

from tests.model.strikes import Rules, explore

SIZES = [Rules(max_strikes=2), Rules(), Rules(max_strikes=3, max_flaps=2, max_bursts=2)]


@pytest.mark.parametrize("rules", SIZES, ids=str)
def test_a_strike_is_a_death_and_a_request_ends_once(rules: Rules) -> None:
    verdict = explore(rules)
    assert verdict.sound, verdict
    assert verdict.num_worlds > 100


@pytest.mark.parametrize(
    "mutant",
    [
        "strike at assignment",
        "strikes never fall away",
        "one death, two strikes",
        "partitions count",
        "lateness is a strike",
    ],
)
def test_taking_a_part_of_the_rule_out_is_found(mutant: str) -> None:
    for rules in SIZES:
        verdict = explore(replace(rules, mutant=mutant))
        assert verdict.violation is not None and "I10" in verdict.violation, verdict


@pytest.mark.parametrize("mutant", ["no deadline", "only what runs is late"])
def test_a_request_that_no_worker_serves_ends_by_its_deadline_alone(mutant: str) -> None:
    verdict = explore(replace(SIZES[0], mutant=mutant))
    assert verdict.stuck is not None, verdict


@pytest.mark.parametrize("mutant", ["late at any time", "told at each answer"])
def test_a_second_end_is_found(mutant: str) -> None:
    verdict = explore(replace(SIZES[0], mutant=mutant))
    assert verdict.violation is not None and "I12" in verdict.violation, verdict
