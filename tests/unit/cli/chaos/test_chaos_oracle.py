"""What a campaign says of a request: each thing that must not be is found, and nothing else."""

import math
from collections.abc import Mapping
from typing import Any

import pytest

from services.cli.chaos.asks import Ask
from services.cli.chaos.attempt import Attempt
from services.cli.chaos.fault import Injected
from services.cli.chaos.ledger import Record
from services.cli.chaos.load import Asked
from services.cli.chaos.oracle import Tally, Verdict, judge, story

ASK = Ask((101, 102), 8, None)
TEXT = "abcdefgh"
KNOWN = {ASK: TEXT}
KILL = Injected("kill gateway", "gateway: SIGKILL", 10.0, 10.1, cuts_gateway=True)
BILLED = {"r1": Record("done", 8, 1)}


def attempt(text: str = TEXT, num_tokens: int = 8, **others: Any) -> Attempt:
    """Whole, but for `others`."""
    whole = {"status": 200, "rid": "r1", "finish_reason": "length", "done": True, "end_s": 10.2}
    fields = {**whole, "connected": True, **others}
    if not fields["done"]:
        fields["finish_reason"] = None
    return Attempt(0, 9.0, text=text, num_tokens=num_tokens, **fields)


def cut(text: str = "abc", rid: str = "r0") -> Attempt:
    return attempt(text, len(text), rid=rid, done=False, broken="the peer hung up")


def verdict(
    *attempts: Attempt,
    faults: tuple[Injected, ...] = (),
    records: Mapping[str, Record | None] | None = None,
) -> Verdict:
    asked = Asked(ASK, "key", list(attempts))
    return judge(asked, KNOWN, faults, BILLED if records is None else records)


def kinds(found: Verdict) -> list[str]:
    return [problem.partition(":")[0] for problem in found.problems]


def test_a_whole_answer_of_the_known_text_is_right() -> None:
    assert verdict(attempt()) == Verdict("answered")
    assert verdict(attempt(), records={"r1": Record("done", 8, 3)}).hit


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        (attempt("abcdefgx"), "wrong"),
        (attempt("abcdefg", 7), "wrong"),
        (attempt("abcdefghh", 9), "duplicated"),
        (attempt("", 0, done=False), "lost"),
        (attempt("abc", 3, done=False, error='{"code": "attempts_exhausted"}'), "lost"),
        (attempt("", 0, status=500, done=False, error="{}"), "lost"),
        (attempt("abc", 3, done=False, broken="no end within 90 s"), "lost"),
        (attempt("abd", 3, done=False, left=True), "wrong"),
    ],
)
def test_what_must_not_be_is_found(wrong: Attempt, kind: str) -> None:
    assert kind in kinds(verdict(wrong, records={}))


def test_a_connection_may_end_with_its_gateway_only() -> None:
    records = {"r0": Record("cancelled", 0, 1), **BILLED}
    assert verdict(cut(), attempt(), faults=(KILL,), records=records) == Verdict("answered")
    assert kinds(verdict(cut(), attempt(), records=records)) == ["lost"]
    late = Injected("kill gateway", "", 30.0, 30.1, cuts_gateway=True)
    other = Injected("kill engine", "", 10.0, 10.1)
    assert kinds(verdict(cut(), attempt(), faults=(late, other), records=records)) == ["lost"]


@pytest.mark.parametrize(
    "fault",
    [
        Injected("kill gateway", "gateway-2: SIGKILL", 10.0, 10.1, cuts_gateway=True),
        Injected("no descriptors", "decode-0: none", 10.0, 10.1, cuts_gateway=True),
    ],
)
def test_a_fault_of_another_process_explains_nothing(fault: Injected) -> None:
    assert "lost" in kinds(verdict(cut(), attempt(), faults=(fault,), records={}))


def test_an_attempt_that_hangs_is_lost_whatever_happened_to_its_gateway() -> None:
    hung = attempt("abc", 3, done=False, broken="no end within 90 s", hangs=True)
    assert "lost" in kinds(verdict(hung, attempt(), faults=(KILL,), records={}))


def test_a_stream_that_just_stops_is_lost_also_if_it_was_repeated() -> None:
    stops = attempt("abc", 3, rid="r0", done=False)
    assert kinds(verdict(stops, attempt(), records={})) == ["lost"]


@pytest.mark.parametrize("status", [409, 503])
def test_what_was_accepted_once_and_never_answered_is_lost(status: int) -> None:
    told = attempt("", 0, rid="", status=status, done=False, error="still running", end_s=130.0)
    assert kinds(verdict(cut(), told, faults=(KILL,), records={})) == ["lost"]
    away = attempt("", 0, rid="", status=0, done=False, broken="refused", connected=False)
    outside = Injected("outside", "", 0.0, math.inf, cuts_gateway=True)
    assert kinds(verdict(cut(), *[away] * 9, faults=(outside,), records={})) == ["lost"]


def test_a_cell_of_others_may_have_any_number_of_gateways() -> None:
    outside = Injected("outside", "", 0.0, math.inf, cuts_gateway=True)
    third = cut()
    third.gateway = 2
    assert verdict(third, attempt(), faults=(outside,)) == Verdict("answered")
    assert kinds(verdict(third, attempt(), faults=(KILL,))) == ["lost"]


def test_a_gateway_that_is_not_there_yet_has_accepted_nothing() -> None:
    away = attempt("", 0, rid="", status=0, done=False, broken="refused", connected=False)
    assert verdict(away, attempt()) == Verdict("answered")


def test_an_error_is_lost_also_if_its_client_left() -> None:
    left = attempt("abc", 3, done=False, left=True, error='{"code": "x"}')
    assert kinds(verdict(left, records={})) == ["lost"]


@pytest.mark.parametrize("state", ["live", "failed", "cancelled", "abandoned"])
def test_a_whole_answer_is_recorded_as_done(state: str) -> None:
    assert "billed wrong" in kinds(verdict(attempt(), records={"r1": Record(state, 8, 1)}))


def test_nothing_lives_on_in_the_records() -> None:
    left = attempt("abc", 3, done=False, left=True)
    assert kinds(verdict(left, records={"r1": Record("live", 3, 1)})) == ["unrecorded"]


def test_a_client_that_is_told_to_come_back_was_not_accepted() -> None:
    refused = attempt("", 0, status=503, rid="", done=False, error="busy")
    assert verdict(refused, attempt()) == Verdict("answered")
    assert kinds(verdict(refused)) == ["refused"], "for as long as it asked"
    assert verdict(attempt("abc", 3, done=False, left=True), records={}) == Verdict("left")


@pytest.mark.parametrize(
    ("state", "outcome"), [("done (length)", "unread"), ("failed (x)", "lost")]
)
def test_a_key_whose_request_has_ended_says_how(state: str, outcome: str) -> None:
    error = f"request r0 had this key and is {state} with 8 output tokens; answers are not kept"
    told = attempt("", 0, rid="", status=409, done=False, error=error)
    records = {"r0": Record("done", 8, 1)}
    found = verdict(cut(), told, faults=(KILL,), records=records)
    assert found.outcome == outcome
    assert kinds(found) == (["lost"] if outcome == "lost" else [])


@pytest.mark.parametrize(
    ("records", "kind"),
    [
        ({"r0": Record("done", 3, 1), "r1": Record("done", 8, 1)}, "billed twice"),
        ({"r1": Record("done", 7, 1)}, "billed wrong"),
        ({"r1": None}, "unrecorded"),
    ],
)
def test_bills_are_added_up(records: Mapping[str, Record | None], kind: str) -> None:
    found = verdict(cut(), attempt(), faults=(KILL,), records=records)
    assert kinds(found) == [kind]


def test_what_a_dead_gateway_left_behind_is_not_billed() -> None:
    left_behind = {"r0": Record("abandoned", 3, 1), **BILLED}
    assert verdict(cut(), attempt(), faults=(KILL,), records=left_behind) == Verdict("answered")


def test_what_could_not_be_read_is_no_fault() -> None:
    assert verdict(attempt(), records={}) == Verdict("answered")


def test_a_tally_counts_and_keeps_the_words() -> None:
    tally = Tally()
    tally.add(Asked(ASK, "key", [attempt()]), Verdict("answered", hit=True))
    tally.add(Asked(ASK, "key", [attempt(rid="r9")]), Verdict("lost", ("lost: 500",)))
    assert tally.outcomes == {"answered": 1, "lost": 1, "hit": 1}
    assert tally.problems == {"lost": 1}
    assert tally.texts == ["lost: 500; request r9 at gateway 1: 200, 8 tokens, whole after 1.2 s"]


def test_refusals_that_are_alike_are_told_once() -> None:
    refused = attempt("", 0, status=409, done=False, error="still running")
    told = list(story([attempt(), attempt(), refused, refused, refused, attempt()]))
    assert [text.startswith("request r1 at gateway 1: 200") for text in told] == [
        True,
        True,
        False,
        False,
        True,
    ]
    assert told[3] == "2 more like it"
