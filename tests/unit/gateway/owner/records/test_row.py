"""The list of the last requests: what a line says, and which lines are shown.

The failure guarded: a bad request that the list of the bad ones does not have.
"""

from dataclasses import replace

import pytest

from services.gateway.owner.records.quantile import limit_of, quantile
from services.gateway.owner.records.receipt import AttemptNote, Receipt
from services.gateway.owner.records.receipts import Receipts
from services.gateway.owner.records.row import Row, RowFilter
from services.gateway.owner.records.slowness import Slowness
from services.gateway.routes.row_query import row_filter
from shared.errors import RequestError
from shared.message_parts.span import Span
from shared.telemetry.attributes import SPAN_PREFILL

MS = 1_000_000
DONE = Row("r", "", "t", "done", "stop", "", 0, 9, 4, 7, 5.0, 2.0, "p0", "d0", 1)


def receipt(rid: str = "r", received_ns: int = MS) -> Receipt:
    found = Receipt(rid, "chat", 9, received_ns, received_ns + MS, "t", cached_tokens=4)
    found.attempts.append(AttemptNote(0, "prefill", "", "why", "p0", "d1", "link_lost"))
    found.attempts.append(AttemptNote(1, "prefill", "", "why", "p0", "d0"))
    return found


def test_a_row_is_a_receipt_in_short() -> None:
    told = receipt()
    assert Row.of(told).as_dict()["ttft_ms"] is None
    told.first_token_ns, told.ended_ns, told.worst_gap_s = 6 * MS, 9 * MS, 0.0021
    told.outcome, told.finish_reason, told.completion_tokens = "done", "stop", 7
    assert Row.of(told).as_dict() == {
        "id": "r",
        "group": "",
        "received_ns": MS,
        "state": "done",
        "finish_reason": "stop",
        "code": "",
        "prompt_tokens": 9,
        "cached_tokens": 4,
        "completion_tokens": 7,
        "ttft_ms": 5.0,
        "worst_gap_ms": 2.1,
        "workers": {"prefill": "p0", "decode": "d0"},
        "attempts": 2,
        "slow_because": None,
        "slow_because_ms": None,
    }


def test_a_row_names_what_its_answer_was_slow_by() -> None:
    told = receipt()
    told.attempts[:1] = []
    told.attempts[0].started_ns = 1502 * MS
    told.first_token_ns = told.attempts[0].first_token_ns = 1600 * MS
    assert Row.of(told).as_dict()["slow_because"] is None, "it lives"
    told.ended_ns = 2000 * MS
    said = Row.of(told).as_dict()
    assert (said["slow_because"], said["slow_because_ms"]) == ("queue", 1500.0)
    prefill = Span(SPAN_PREFILL, 802 * MS, 1600 * MS, 1)
    told.note(1, "p0", prefill)
    assert Row.of(told).slow_because_ms == 800.0, "its worker has told since"


def test_what_an_answer_was_slow_by_is_worked_out_once_a_telling(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each page that is open asks for the latest requests each second."""
    told = receipt()
    told.first_token_ns, told.ended_ns = 6 * MS, 9 * MS
    worked_out: list[Receipt] = []
    work_out = Receipt._slowness

    def counted(self: Receipt) -> Slowness | None:
        worked_out.append(self)
        return work_out(self)

    monkeypatch.setattr(Receipt, "_slowness", counted)
    for _ in range(3):
        Row.of(told)
    assert len(worked_out) == 1
    told.note(1, "p0", Span(SPAN_PREFILL, 2 * MS, 6 * MS, 1))
    Row.of(told)
    assert len(worked_out) == 2


def test_a_request_that_waits_has_no_worker_yet() -> None:
    row = Row.of(Receipt("r", "chat", 9, 0, 1))
    assert (row.state, row.prefill, row.decode, row.num_attempts) == ("live", "", "", 0)


def test_packed_receipts_have_the_same_rows() -> None:
    receipts = Receipts(10, max_open=2)
    told = [receipt(f"r{number}", number) for number in range(5)]
    for each in told:
        each.outcome, each.ended_ns = "done", 9
        receipts.add(each)
    assert receipts.get("r0") is None, "it is packed"
    assert receipts.rows() == [Row.of(each) for each in told]


def test_the_newest_come_first_and_no_more_than_are_asked_for() -> None:
    rows = [replace(DONE, rid=str(time), received_ns=time) for time in (3, 9, 5)]
    assert [row.rid for row in RowFilter(2).choose(rows)] == ["9", "5"]


def test_each_mark_adds_its_rows() -> None:
    rows = [
        replace(DONE, rid="failed", state="failed"),
        replace(DONE, rid="cancelled", state="cancelled"),
        replace(DONE, rid="retried", num_attempts=2),
        replace(DONE, rid="late", ttft_ms=90.0),
        replace(DONE, rid="gap", worst_gap_ms=90.0),
        *(replace(DONE, rid=f"good{number}") for number in range(15)),
    ]

    def shown(wanted: RowFilter) -> set[str]:
        return {row.rid for row in wanted.choose(rows)}

    assert shown(RowFilter(99, failed=True)) == {"failed"}
    assert shown(RowFilter(99, retried=True)) == {"retried"}
    assert shown(RowFilter(99, slow=True)) == {"late", "gap"}
    assert shown(RowFilter(99, failed=True, retried=True)) == {"failed", "retried"}
    assert len(shown(RowFilter(99))) == len(rows)


def test_where_all_are_alike_none_is_slow() -> None:
    rows = [replace(DONE, ttft_ms=ttft_ms) for ttft_ms in (5.0, 5.0, None)]
    assert RowFilter(9, slow=True).choose(rows) == []


def test_a_tenant_sees_its_own_and_is_compared_with_its_own() -> None:
    """Else the others' times could be told from which of its own are slow."""
    others = [replace(DONE, tenant="other", ttft_ms=1000.0) for _ in range(20)]
    own = [replace(DONE, rid=str(ms), ttft_ms=float(ms)) for ms in range(20)]
    rows = others + own
    assert [row.rid for row in RowFilter(9, "t", slow=True).choose(rows)] == ["18", "19"]
    assert RowFilter(9, "nobody").choose(rows) == []


def test_quantiles_are_values_that_were_measured() -> None:
    assert quantile([], 0.5) is None
    assert [quantile([3, 1, 2, 4], share) for share in (0.0, 0.5, 0.75, 0.99)] == [1, 2, 3, 4]
    assert limit_of([], 0.5) == float("inf")


def test_what_a_query_asks_for() -> None:
    assert row_filter([], None) == RowFilter(50)
    asked = [("limit", "7"), ("failed", "1"), ("slow", "0")]
    assert row_filter(asked, "t") == RowFilter(7, "t", failed=True)


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ([("limit", "0")], "limit"),
        ([("limit", "1001")], "limit"),
        ([("limit", "-1")], "limit"),
        ([("limit", "")], "limit"),
        ([("limit", "²")], "limit"),
        ([("limit", "9" * 5000)], "limit"),
        ([("failed", "true")], "failed"),
        ([("slow", "")], "slow"),
        ([("failed", "1"), ("failed", "0")], "failed"),
        ([("offset", "1")], "offset"),
    ],
)
def test_a_bad_query_is_refused_by_name(query: list[tuple[str, str]], param: str) -> None:
    with pytest.raises(RequestError) as refused:
        row_filter(query, None)
    assert (refused.value.status, refused.value.param) == (400, param)
