"""R9 and I10, exhaustively at small scope: true as they are, broken without any part of them."""

from dataclasses import replace

import pytest

from tests.model.strikes import Rules, explore

SIZES = [Rules(max_strikes=2), Rules(), Rules(max_strikes=3, max_flaps=2, max_bursts=2)]


@pytest.mark.parametrize("rules", SIZES, ids=str)
def test_a_strike_is_a_death_and_the_limit_ends_the_request(rules: Rules) -> None:
    num_stories, violation = explore(rules)
    assert violation is None
    assert num_stories > 100


@pytest.mark.parametrize(
    "mutant",
    [
        "strike at assignment",
        "strikes never fall away",
        "one death, two strikes",
        "partitions count",
    ],
)
def test_taking_a_part_of_the_rule_out_is_found(mutant: str) -> None:
    assert all(explore(replace(rules, mutant=mutant))[1] for rules in SIZES)
