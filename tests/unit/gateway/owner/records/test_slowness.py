"""The receipt of a slow answer names its cause, of a fast one none, and what it used."""

from dataclasses import replace
from typing import Any

import pytest

from services.gateway.owner.records.group_receipt import group_body
from services.gateway.owner.records.receipt import AttemptNote, Receipt
from services.gateway.owner.records.slowness import SHORT_MS, SLOW_MS
from shared.message_parts.span import Span, SpanEvent
from shared.telemetry import attributes as names

MS = 1_000_000
BEGIN_MS = 1000.0


def span(name: str, start_ms: float, end_ms: float, **told: float) -> Span:
    """Without `step`: computed all the time."""
    attributes: dict[str, Any] = {names.STEP_MS: end_ms - start_ms}
    attributes.update({f"baton.{key}": value for key, value in told.items()})
    return Span(name, int(start_ms * MS), int(end_ms * MS), 1, attributes)


class Story:
    """An answer on one worker; times are milliseconds since it was accepted."""

    def __init__(self) -> None:
        self.receipt = Receipt("r", "chat", 40, int(BEGIN_MS * MS), int(BEGIN_MS * MS))

    def attempt(
        self,
        *times: float,
        last: float = 0,
        decodes: float | None = None,
        adopted: float | None = None,
        prefill: dict[str, float] | None = None,
        decode: dict[str, float] | None = None,
    ) -> "Story":
        """`times`: queued, started, its first token, ended. `last`: its last token, if another
        attempt follows. `decodes`: begin of its first decode step. `adopted`: its KV was there."""
        _, started, first, ended = times
        at_ns = [int((BEGIN_MS + each) * MS) for each in times]
        note = AttemptNote(len(self.receipt.attempts), "prefill", "", "", "p0", "d0")
        note.queued_ns, note.started_ns, note.first_token_ns, note.ended_ns = at_ns
        note.last_token_ns = int((BEGIN_MS + last) * MS) if last else 0
        receipt = self.receipt
        receipt.attempts.append(note)
        receipt.first_token_ns = receipt.first_token_ns or note.first_token_ns
        receipt.ended_ns = note.ended_ns
        receipt.completion_tokens, receipt.outcome = 9, "done"
        begin = BEGIN_MS + (first if decodes is None else decodes)
        prefilled = span(
            names.SPAN_PREFILL, BEGIN_MS + started, BEGIN_MS + first, **(prefill or {})
        )
        decoded = span(names.SPAN_DECODE, begin, BEGIN_MS + ended, **(decode or {}))
        if adopted is not None:
            event = SpanEvent(names.EVENT_ADOPTED, int((BEGIN_MS + adopted) * MS))
            decoded = replace(decoded, events=(event,))
        receipt.note(note.epoch, "w", prefilled)
        receipt.note(note.epoch, "w", decoded)
        return self

    @property
    def cause(self) -> str | None:
        slowness = self.receipt.slowness
        return slowness.cause if slowness else None


def test_a_fast_answer_names_none() -> None:
    decode = {"crowded_ms": 60.0, "stretched_ms": 20.0}
    assert Story().attempt(0, 5, 40, 400, decode=decode).cause is None


@pytest.mark.parametrize(
    ("cause", "story"),
    [
        ("queue", Story().attempt(0, 300, 340, 600)),
        ("handover", Story().attempt(0, 5, 40, 600, decodes=300)),
        ("handover", Story().attempt(0, 5, 40, 600, decodes=300, adopted=290)),
        ("handover", Story().attempt(0, 5, 40, 600, decodes=300, adopted=310)),
        ("place", Story().attempt(0, 5, 40, 600, decodes=300, adopted=60)),
        ("long_neighbour", Story().attempt(0, 5, 40, 600, decode={"stretched_ms": 250.0})),
        ("batch", Story().attempt(0, 5, 40, 600, decode={"crowded_ms": 250.0})),
        ("pause", Story().attempt(0, 5, 40, 600, decode={"step_ms": 300.0})),
        ("long_neighbour", Story().attempt(0, 5, 300, 600, prefill={"stretched_ms": 250.0})),
    ],
)
def test_a_planted_cause_is_named(cause: str, story: Story) -> None:
    assert story.cause == cause


def test_attempts_without_a_token_are_a_retry() -> None:
    story = Story()
    story.receipt.attempts.append(AttemptNote(0, "prefill", "", ""))
    assert story.attempt(400, 405, 440, 700).cause == "retry"


def test_of_attempts_that_brought_tokens_only_the_silence_after_them_is_a_retry() -> None:
    def first(last: float, ended: float) -> Story:
        return Story().attempt(0, 5, 40, ended, last=last)

    assert first(600, 610).attempt(610, 620, 640, 1500).cause is None
    assert first(600, 1100).attempt(1100, 1110, 1160, 1500).cause == "retry", "it stood still"
    assert first(600, 610).attempt(610, 1100, 1160, 1500).cause == "retry", "it waited again"
    assert first(9000, 9010).attempt(9010, 9020, 9060, 9500).cause is None


def test_what_others_did_to_an_earlier_attempt_is_not_held_against_the_last() -> None:
    first = Story().attempt(0, 5, 40, 600, last=600, decode={"stretched_ms": 550.0})
    assert first.attempt(600, 605, 620, 1500).cause is None


def test_a_wait_of_a_second_is_slow_in_an_answer_of_a_minute_and_a_crowd_is_not() -> None:
    assert Story().attempt(0, SLOW_MS, 1040, 60_000).cause == "queue"
    assert Story().attempt(0, 5, 40, 60_000, decode={"stretched_ms": SLOW_MS}).cause
    assert Story().attempt(0, 5, 40, 60_000, decode={"crowded_ms": 5 * SLOW_MS}).cause is None


def test_nothing_of_a_few_milliseconds_is_slow() -> None:
    assert Story().attempt(0, SHORT_MS - 1, SHORT_MS + 5, SHORT_MS + 10).cause is None


def test_the_largest_part_is_the_cause() -> None:
    decode = {"stretched_ms": 400.0, "crowded_ms": 350.0}
    assert Story().attempt(0, 300, 340, 900, decode=decode).cause == "long_neighbour"


def test_a_batch_that_took_more_than_the_wait_is_the_cause() -> None:
    """Each alone is felt less, or not at all; what costs most is to be named."""
    decode = {"crowded_ms": 4200.0}
    assert Story().attempt(0, 1500, 2900, 12_900, decode=decode).cause == "batch"
    assert Story().attempt(0, 5, 1405, 12_900, decode=decode).cause is None, "not slow by itself"


def test_the_receipt_says_how_long_the_cause_took_and_what_share_that_is() -> None:
    body = Story().attempt(0, 1500, 2000, 12_000).receipt.as_dict()
    told = [body[f"slow_because{end}"] for end in ("", "_ms", "_share")]
    assert told == ["queue", 1500.0, 0.125]
    fast = Story().attempt(0, 5, 40, 400).receipt.as_dict()
    assert (fast["slow_because_ms"], fast["slow_because_share"]) == (None, None)


def test_workers_of_an_earlier_release_tell_nothing_and_are_no_cause() -> None:
    story = Story().attempt(0, 5, 40, 600)
    for _, _, told in story.receipt.spans:
        told.attributes.clear()
    body = story.receipt.as_dict()
    assert (body["slow_because"], body["compute_ms"], body["kv_byte_seconds"]) == (None,) * 3


def test_what_was_used_is_the_sum_over_attempts_and_stages() -> None:
    story = Story()
    for begin in (0, 600):
        story.attempt(
            begin,
            begin + 5,
            begin + 40,
            begin + 500,
            prefill={"compute_ms": 30.0, "kv_byte_seconds": 1.0},
            decode={"compute_ms": 12.5, "kv_byte_seconds": 2.0},
        )
    body = story.receipt.as_dict()
    assert (body["compute_ms"], body["kv_byte_seconds"]) == (85.0, 6.0)


def test_a_request_that_lives_or_has_no_token_is_not_slow_yet() -> None:
    receipt = Receipt("r", "chat", 40, 1, 1)
    assert receipt.as_dict()["slow_because"] is None
    receipt.ended_ns = 90_000 * MS
    assert receipt.as_dict()["slow_because"] is None


def test_a_group_has_the_sums_of_its_choices_and_the_cause_of_the_last() -> None:
    told = {"compute_ms": 12.5, "kv_byte_seconds": 2.0}
    quick = Story().attempt(0, 5, 40, 400, decode=told).receipt
    slow = Story().attempt(0, 5, 40, 900, decode={"crowded_ms": 700.0, **told}).receipt
    body = group_body("g", [slow.as_dict(), quick.as_dict()])
    assert (body["compute_ms"], body["kv_byte_seconds"]) == (25.0, 4.0)
    assert body["slow_because"] == "batch"
    assert (body["slow_because_ms"], body["slow_because_share"]) == (700.0, 0.778)
    for _, _, each in (*quick.spans, *slow.spans):
        each.attributes.clear()
    assert group_body("g", [slow.as_dict(), quick.as_dict()])["compute_ms"] is None


def test_a_group_is_not_slow_yet_while_one_of_its_choices_lives() -> None:
    slow = Story().attempt(0, 5, 40, 900, decode={"crowded_ms": 700.0}).receipt
    living = Receipt("r2", "chat", 40, 1, 1)
    assert slow.as_dict()["slow_because"] == "batch"
    body = group_body("g", [slow.as_dict(), living.as_dict()])
    assert (body["state"], body["slow_because"], body["slow_because_ms"]) == ("live", None, None)
