"""A block that two prompts begin with, exhaustively at small scope: nobody takes it from either."""

from dataclasses import replace

import pytest

from tests.model.shared_blocks import Rules, explore

SOUND = {
    "a full pool": Rules(),
    "room for the same block twice": Rules(num_blocks=4, max_others=1),
}

MUTANTS = {
    "freed by the first": (Rules(), "B2"),
    "no reference to what was cached": (Rules(), "B2"),
    "named before it is computed": (Rules(), "B2"),
    "a cached block keeps its generation": (Rules(), "B1"),
    "prefix is not verified": (Rules(num_blocks=4, max_others=1), "B1"),
    "twin's block under readers": (Rules(num_blocks=4), "B3"),
}


@pytest.mark.parametrize("rules", SOUND.values(), ids=SOUND)
def test_a_shared_block_is_whole_for_all_who_hold_or_verify_it(rules: Rules) -> None:
    verdict = explore(rules)
    assert verdict.sound, verdict
    assert verdict.num_worlds > 1000


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_rule_of_sharing_taken_out_is_found(mutant: str) -> None:
    rules, expected = MUTANTS[mutant]
    verdict = explore(replace(rules, mutants=frozenset({mutant})))
    assert verdict.violation is not None and expected in verdict.violation, verdict
