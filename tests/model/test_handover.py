"""The hand-over protocol, exhaustively at small scope: sound as it is, broken without a rule."""

from dataclasses import replace

import pytest

from tests.model.explore import explore
from tests.model.world import Scope

SOUND = {
    "two epochs": Scope(max_epochs=2),
    "three tokens, a crash": Scope(num_tokens=3, max_crashes=1),
    "a crash, a lost message": Scope(max_crashes=1, max_lost=1),
    "two lost messages": Scope(max_lost=2),
    "prefill runs twice": Scope(num_tokens=3, max_reruns=1),
    "two decode workers": Scope(num_decode=2, num_tokens=3),
    "two prefill workers": Scope(num_prefill=2),
    "mapped, two ranks": Scope(num_ranks=2, mapped=True),
    "mapped, two epochs": Scope(max_epochs=2, mapped=True),
    "mapped, a crash": Scope(max_crashes=1, mapped=True),
    "mapped, prefill runs twice": Scope(max_reruns=1, num_ranks=2, mapped=True),
    "mapped, two prefill workers": Scope(num_prefill=2, mapped=True),
    "fault-free, mapped, two ranks": Scope(
        num_decode=2, num_ranks=2, mapped=True, num_tokens=4, fault_free=True
    ),
    "fault-free 1P1D": Scope(num_tokens=4, fault_free=True),
    "fault-free 2P2D": Scope(num_prefill=2, num_decode=2, num_tokens=4, fault_free=True),
}

MUTANTS = {
    "no watermark": (Scope(max_reruns=1), "I2"),
    "early watermark": (Scope(max_reruns=1), "I2"),
    "no tag compare": (Scope(max_reruns=1), "I2"),
    "no verify": (Scope(), "I2"),
    "late generation": (Scope(), "I2"),
    "no incarnation": (Scope(max_crashes=1, max_generation=1), "I2"),
    "unbound assign": (Scope(max_crashes=1, max_generation=0), "I4p"),
    "two decodes": (Scope(num_decode=2, num_tokens=3, fault_free=True), "I4d"),
    "early free": (Scope(), "I7"),
    "no epoch": (Scope(max_epochs=2, max_generation=1), "I4"),
    "no index": (Scope(num_tokens=3), "I3"),
    "done first": (Scope(), "I5"),
    "no terminal guard": (Scope(), "I1"),
    "one rank's mark": (Scope(num_ranks=2, mapped=True), "I2"),
    "early verify": (Scope(mapped=True), "I2"),
    "unmap forgotten": (Scope(mapped=True, max_crashes=1, max_generation=0), "cannot leave"),
    "unmap amid a copy": (Scope(mapped=True), "I11"),
    "copy after unmap": (Scope(mapped=True), "I11"),
    "no lease": (Scope(max_lost=2, max_generation=0), "cannot leave"),
    "no reorder buffer": (Scope(num_tokens=3, fault_free=True), "cannot leave"),
}


@pytest.mark.parametrize("scope", SOUND.values(), ids=SOUND)
def test_every_world_is_sound_and_can_settle(scope: Scope) -> None:
    verdict = explore(scope)
    assert verdict.sound, verdict
    assert verdict.num_worlds > 50


@pytest.mark.parametrize("mutant", MUTANTS)
def test_taking_a_rule_out_is_found(mutant: str) -> None:
    scope, expected = MUTANTS[mutant]
    verdict = explore(replace(scope, mutants=frozenset({mutant})))
    found = verdict.violation or verdict.stuck or "nothing"
    assert expected in found, verdict


@pytest.mark.parametrize(
    "mutant", ["no watermark", "early watermark", "no tag compare", "no verify", "late generation"]
)
def test_a_mapped_pool_needs_the_same_rules(mutant: str) -> None:
    scope = Scope(max_reruns=1, mapped=True, mutants=frozenset({mutant}))
    verdict = explore(scope)
    assert verdict.violation is not None and "I2" in verdict.violation, verdict
