"""W3C trace context in and out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.telemetry.tracing import new_trace, parse_traceparent

VALID = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_traceparent_is_read_and_written_unchanged() -> None:
    context = parse_traceparent(VALID)
    assert context is not None
    assert context.traceparent == VALID
    assert context.sampled


def test_a_child_shares_the_trace_only() -> None:
    context = new_trace()
    child = context.child()
    assert (child.trace_id, child.flags) == (context.trace_id, context.flags)
    assert child.span_id != context.span_id
    assert parse_traceparent(child.traceparent) == child


@pytest.mark.parametrize(("flags", "sampled"), [("00", False), ("01", True), ("03", True)])
def test_whether_it_is_recorded_is_its_beginners_wish(flags: str, sampled: bool) -> None:
    context = parse_traceparent(VALID[:-2] + flags)
    assert context is not None
    assert context.sampled is context.child().sampled is sampled


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "00",
        VALID.replace("-", "_"),
        VALID.upper(),
        VALID[:-1],
        "ff" + VALID[2:],
        "00-" + "0" * 32 + VALID[35:],
        VALID[:36] + "0" * 16 + "-01",
    ],
)
def test_a_malformed_traceparent_is_none(header: str | None) -> None:
    assert parse_traceparent(header) is None


@given(st.text(max_size=80))
def test_no_header_breaks_the_reader(header: str) -> None:
    context = parse_traceparent(header)
    assert context is None or context.traceparent == header.strip()
