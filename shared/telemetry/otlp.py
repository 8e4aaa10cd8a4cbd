"""Finished spans to an OTLP/HTTP collector, in batches, off the event loop.

The queue is bounded: while the collector is away or slow, spans are dropped, never waited for.
"""

import logging
import os
import threading
from collections.abc import Mapping, Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from shared.message_parts.span import Span
from shared.telemetry import attributes as names
from shared.telemetry.tracing import TraceContext, new_trace

logger = logging.getLogger(__name__)

MAX_QUEUED_SPANS = 2048
CLOSE_LIMIT_S = 1.5
"""for the last batches at the end of the process; a collector that hangs gets no more"""
_EXPORT_DELAY_MS = 200
_EXPORT_TIMEOUT_S = 5
_LISTS = frozenset({names.RESPONSE_FINISH_REASONS})
"""attributes that the conventions want as lists"""


class OtlpSpans:
    """A SpanSink. `endpoint` is the collector's base URL; `/v1/traces` is appended."""

    def __init__(self, endpoint: str, service: str, resource: Mapping[str, str]) -> None:
        self._resource = Resource.create(
            {"service.name": service, names.PID: os.getpid(), **resource}
        )
        self._scope = InstrumentationScope("baton")
        self._exporter = _QuietExporter(
            OTLPSpanExporter(
                endpoint=endpoint.rstrip("/") + "/v1/traces", timeout=_EXPORT_TIMEOUT_S
            )
        )
        self._processor = BatchSpanProcessor(
            self._exporter, MAX_QUEUED_SPANS, schedule_delay_millis=_EXPORT_DELAY_MS
        )

    def emit(
        self, span: Span, parent: TraceContext | None, own: TraceContext | None = None
    ) -> None:
        context = own or (parent or new_trace()).child()
        if context.sampled:
            self._processor.on_end(self._readable(span, parent, context, is_server=own is not None))

    def close(self) -> None:
        closing = threading.Thread(
            target=self._processor.shutdown,
            daemon=True,
        )
        closing.start()
        closing.join(CLOSE_LIMIT_S)
        if closing.is_alive():
            self._exporter.shutdown()

    def _readable(
        self, span: Span, parent: TraceContext | None, context: TraceContext, *, is_server: bool
    ) -> ReadableSpan:
        attributes = {
            key: (str(value),) if key in _LISTS else value for key, value in span.attributes.items()
        }
        failed = names.ERROR_TYPE in attributes
        return ReadableSpan(
            name=span.name,
            context=_span_context(context),
            parent=_span_context(parent) if parent else None,
            resource=self._resource,
            attributes={**attributes, names.PID: span.pid},
            events=[Event(event.name, timestamp=event.time_ns) for event in span.events],
            kind=SpanKind.SERVER if is_server else SpanKind.INTERNAL,
            status=Status(StatusCode.ERROR) if failed else Status(),
            start_time=span.start_ns,
            end_time=span.end_ns,
            instrumentation_scope=self._scope,
        )


class _QuietExporter(SpanExporter):
    """Says once that the collector is away and once that it is back; the exporter itself would
    write a line for every attempt."""

    def __init__(self, exporter: OTLPSpanExporter) -> None:
        self._exporter = exporter
        self._answers = True
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        answers = result is SpanExportResult.SUCCESS
        if answers != self._answers:
            self._answers = answers
            text = "answers again" if answers else "does not answer, spans are dropped"
            logger.warning("the trace collector %s", text)
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()  # type: ignore[no-untyped-call]


def _span_context(context: TraceContext) -> SpanContext:
    return SpanContext(
        trace_id=int(context.trace_id, 16),
        span_id=int(context.span_id, 16),
        is_remote=True,
        trace_flags=TraceFlags(int(context.flags, 16)),
    )
