"""A history that the protocol allows, and each way in which one may not be."""

import re
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from services.cli.chaos.history import CAUSES, breaches

Receipt = dict[str, Any]


def attempt(epoch: int, begin_ns: int, end: str, **told: object) -> Receipt:
    """Of ten nanoseconds."""
    steps = {"queued_ns": 0, "assigned_ns": 1, "started_ns": 2, "first_token_ns": 3, "ended_ns": 10}
    times = {step: begin_ns + later for step, later in steps.items()}
    workers = {"mode": "prefill", "reason": "", "prefill": "prefill-0", "decode": "decode-0"}
    return {"epoch": epoch, "end": end, **workers, **times, **told}


def receipt() -> Receipt:
    """Decode died, and another one went on alone."""
    alone = {"mode": "local", "reason": "no_prefill_worker", "prefill": "decode-1"}
    return {
        "state": "done",
        "finish_reason": "length",
        "code": "length",
        "completion_tokens": 9,
        "first_token_ns": 103,
        "ended_ns": 120,
        "attempts": [
            attempt(0, 100, "link_lost"),
            attempt(1, 110, "done", decode="decode-1", **alone),
        ],
    }


def test_what_happened_is_allowed() -> None:
    assert list(breaches(receipt())) == []


def test_one_that_never_had_a_worker_may_only_fail() -> None:
    waited = {**receipt(), "attempts": [], "first_token_ns": 0, "completion_tokens": 0}
    assert list(breaches({**waited, "state": "failed", "code": "deadline"})) == []
    assert list(breaches({**waited, "state": "cancelled"})) == []
    assert list(breaches(waited)) != []


def test_one_that_fails_while_it_waits_for_another_worker_is_allowed() -> None:
    given_up = {**receipt(), "state": "failed", "code": "deadline"}
    given_up["attempts"] = given_up["attempts"][:1]
    assert list(breaches(given_up)) == []


def test_the_causes_are_those_that_operators_read_of() -> None:
    told = Path("services/gateway/README.md").read_text(encoding="utf-8")
    table = told.partition("| `end` | why |")[2].partition("\n\n")[0]
    firsts = [line.split("|")[1] for line in table.splitlines()[2:]]
    assert {name for first in firsts for name in re.findall(r"`(\w+)`", first)} == CAUSES


def test_the_causes_are_those_of_the_sources() -> None:
    calls = {
        "services/gateway/owner/machine/request_machine.py": r'_(?:retry|take_back)\("()(\w+)"',
        "services/gateway/owner/frames.py": r'machine\.fail\([^)]*"()(\w+)"\)',
        "services/gateway/owner/placement/placer.py": r'(handback)\([^)]*"(\w+)"\)',
        "services/decode/pulls.py": r'(?:on_failed\(|return )"()(\w+)"',
        "shared/worker/inbox.py": r'\.fail\(held, "()(\w+)"',
        "shared/worker/node.py": r'(hand_?back)\((?:held, )?"(\w+)"\)',
        "services/decode/service.py": r'(hand_?back)\((?:held, )?"(\w+)"\)',
    }
    for file, pattern in calls.items():
        found = re.findall(pattern, Path(file).read_text(encoding="utf-8"))
        names = {f"handback_{name}" if kind else name for kind, name in found}
        assert names and names <= CAUSES, (file, names - CAUSES)


WRONG: dict[str, Callable[[Receipt], object]] = {
    "an epoch twice": lambda one: one["attempts"][1].update(epoch=0),
    "an epoch left out": lambda one: one["attempts"][1].update(epoch=2),
    "a token before its start": lambda one: one["attempts"][1].update(first_token_ns=111),
    "given to nobody": lambda one: one["attempts"][0].update(prefill=""),
    "to itself": lambda one: one["attempts"][0].update(decode="prefill-0"),
    "alone at two": lambda one: one["attempts"][1].update(decode="decode-0"),
    "alone, and nothing says why": lambda one: one["attempts"][1].update(reason=""),
    "an attempt after the end": lambda one: one["attempts"][0].update(end="done"),
    "an end that nobody knows": lambda one: one["attempts"][0].update(end="tired"),
    "two attempts at once": lambda one: one["attempts"][1].update(queued_ns=105),
    "it lives": lambda one: one.update(state="live"),
    "two ends": lambda one: one["attempts"][1].update(end="cancelled"),
    "done after a fault": lambda one: one["attempts"].pop(),
    "no reason for its end": lambda one: one.update(finish_reason=""),
    "a second first token": lambda one: one.update(first_token_ns=113),
    "a failure without a code": lambda one: (
        one.update(state="failed", code=""),
        one["attempts"][1].update(end="failed"),
    ),
    "tokens from nobody": lambda one: (
        one.update(first_token_ns=0),
        [each.update(first_token_ns=0) for each in one["attempts"]],
    ),
    "an answer by prefill": lambda one: one.update(
        attempts=[attempt(0, 100, "done", decode="")],
    ),
    "an answer by prefill, and prefill": lambda one: one.update(
        attempts=[attempt(0, 100, "link_lost", decode=""), attempt(1, 110, "done", decode="")],
    ),
    "an end that nobody knows, and no answer": lambda one: (
        one.update(state="cancelled"),
        one["attempts"][1].update(end="tired"),
    ),
    "no end, and no answer": lambda one: (
        one.update(state="cancelled"),
        one["attempts"][1].update(end=""),
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_each_that_is_not_is_told(what: str) -> None:
    wrong = deepcopy(receipt())
    WRONG[what](wrong)
    assert list(breaches(wrong)) != []
