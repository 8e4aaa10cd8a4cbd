"""Spans reach a collector as they are; a collector that is away costs nothing but the spans."""

import socket
import time

import pytest

from shared.message_parts.span import Span, SpanEvent
from shared.telemetry import attributes as names
from shared.telemetry.otlp import CLOSE_LIMIT_S, MAX_QUEUED_SPANS, OtlpSpans
from shared.telemetry.span_sink import build_span_sink
from shared.telemetry.tracing import NoSpans, new_trace, parse_traceparent
from tests.support.clock import idle_s
from tests.support.fakes.otlp_receiver import receiving
from tests.support.measured import Measured

SPAN = Span("decode", 1_000, 2_000, 77, {"baton.decode.tokens": 3}, (SpanEvent("chunk", 1_500),))


def test_a_span_arrives_under_its_parent_with_its_resource() -> None:
    parent = new_trace()
    with receiving() as receiver:
        sink = OtlpSpans(receiver.url, "baton-decode", {"service.instance.id": "d0.1"})
        sink.emit(SPAN, parent)
        sink.close()
        [span] = receiver.trace(parent.trace_id)
    assert (span.name, span.parent, span.start_ns, span.end_ns) == (
        "decode",
        parent.span_id,
        1_000,
        2_000,
    )
    assert span.attributes == {"baton.decode.tokens": 3, names.PID: 77}
    assert span.events == ("chunk",)
    assert span.resource["service.name"] == "baton-decode"
    assert span.resource["service.instance.id"] == "d0.1"
    assert isinstance(span.resource[names.PID], int)


def test_a_request_keeps_its_own_id_and_shows_its_failure() -> None:
    own = new_trace()
    attributes: dict[str, str | int | float | bool] = {
        names.ERROR_TYPE: "deadline_exceeded",
        names.RESPONSE_FINISH_REASONS: "stop",
    }
    with receiving() as receiver:
        sink = OtlpSpans(receiver.url, "baton-gateway", {})
        sink.emit(Span("request", 1, 2, 1, attributes), None, own)
        sink.close()
        [span] = receiver.trace(own.trace_id)
    assert (span.id, span.parent, span.is_error) == (own.span_id, "", True)
    assert span.attributes[names.RESPONSE_FINISH_REASONS] == ["stop"]


def test_an_unsampled_trace_is_not_recorded() -> None:
    sampled = new_trace()
    unsampled = parse_traceparent(new_trace().traceparent[:-2] + "00")
    assert unsampled is not None
    with receiving() as receiver:
        sink = OtlpSpans(receiver.url, "baton-gateway", {})
        sink.emit(SPAN, unsampled)
        sink.emit(SPAN, sampled)
        sink.close()
        assert len(receiver.spans) == len(receiver.trace(sampled.trace_id)) == 1


@pytest.mark.clock
@pytest.mark.parametrize("listens", [False, True])
def test_a_collector_that_is_away_or_hangs_delays_nobody(listens: bool, measured: Measured) -> None:
    """Refused connections, and connections that nobody ever answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        if not listens:
            server.close()
        sink = OtlpSpans(f"http://127.0.0.1:{port}", "baton-decode", {})
        parent = new_trace()
        longest_s = 0.0
        for _ in range(2 * MAX_QUEUED_SPANS):
            begin_s = idle_s()
            sink.emit(SPAN, parent)
            longest_s = max(longest_s, idle_s() - begin_s)
        measured.at_most("longest wait in emit", longest_s, 0.5, "s")
        begin_s = time.monotonic()
        sink.close()
        measured.at_most("close took", time.monotonic() - begin_s, CLOSE_LIMIT_S + 1, "s")


def test_without_an_endpoint_nothing_is_kept() -> None:
    assert isinstance(build_span_sink("", "baton-decode", {}), NoSpans)
