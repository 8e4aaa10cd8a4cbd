"""With each policy every sequence ends and each promise is kept; each rule taken out is missed."""

from dataclasses import replace

import pytest

from tests.model.engine.kv_pressure import Request, Rules, endless, explore, sizes

CLASSES = [(3, 3, 3), (3, 6, 3), (6, 6, 3), (0, 3, 6), (3, 3, 3, 3)]
POLICIES = ["preempt", "queue", "reject"]


def scopes(policy: str, mode: str) -> list[Rules]:
    return [
        Rules(sizes(classes=classes), num_blocks, policy, mode)  # type: ignore[arg-type]
        for classes in CLASSES
        for num_blocks in range(len(classes), 7)
    ]


@pytest.mark.parametrize("mode", ["full", "decode"])
@pytest.mark.parametrize("policy", POLICIES)
def test_every_sequence_ends_and_no_promise_is_broken(policy: str, mode: str) -> None:
    num_worlds = 0
    for rules in scopes(policy, mode):
        verdict = explore(rules)
        assert verdict.sound, (rules, str(verdict))
        assert not endless(rules)
        num_worlds += verdict.num_worlds
    assert num_worlds > 300


FOUND = [
    ("waits for a block", "preempt", "full", "cannot leave"),
    ("waits for a block", "preempt", "decode", "cannot leave"),
    ("growth in a queue", "queue", "full", "cannot leave"),
    ("growth in a queue", "queue", "decode", "cannot leave"),
    ("never pinned", "preempt", "full", "too often"),
    ("pinned with less", "preempt", "full", "not enough"),
    ("one that is scheduled", "preempt", "full", "scheduled"),
    ("one that is scheduled", "preempt", "decode", "scheduled"),
    ("the oldest", "preempt", "full", "oldest"),
    ("the oldest", "preempt", "decode", "oldest"),
    ("the earliest class", "preempt", "full", "later class"),
    ("the dearest", "preempt", "full", "cheaper"),
    ("the dearest", "preempt", "decode", "cheaper"),
    ("no class", "queue", "full", "the head wants"),
    ("no class", "preempt", "full", "the head wants"),
    ("no queue is counted", "reject", "full", "waits for blocks"),
    ("what was taken is refused", "reject", "full", "lost"),
]


@pytest.mark.parametrize(("mutant", "policy", "mode", "words"), FOUND)
def test_each_rule_taken_out_is_missed(mutant: str, policy: str, mode: str, words: str) -> None:
    rules = [replace(each, mutants=frozenset({mutant})) for each in scopes(policy, mode)]
    verdicts = [explore(each) for each in rules]
    found = [verdict.violation or verdict.stuck or "" for verdict in verdicts]
    assert any(words in each for each in found), found


def test_a_livelock_is_found() -> None:
    """Two that give way themselves and begin again each time. Each of the three rules alone that
    were taken out ends it."""
    requests = (Request(3, 2, 7), Request(3, 2, 7))
    wrong = frozenset({"never pinned", "gives way itself", "the answer begins again"})
    assert endless(Rules(requests, 4, mutants=wrong))
    for rule in wrong:
        assert not endless(Rules(requests, 4, mutants=wrong - {rule}))
